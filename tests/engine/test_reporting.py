"""Lines of metrics: the speed that they tell."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from triptych.core.model import Phase
from triptych.engine.config import LogConfig
from triptych.engine.metric_log import MetricLog, read_metrics
from triptych.engine.progress import Progress
from triptych.engine.reporting import Reporting
from triptych.engine.run_directory import RunDirectory


def test_a_line_tells_the_speed_of_the_images_that_it_counts(tmp_path: Path) -> None:
    directory, now = RunDirectory(tmp_path / "a"), 0.0
    directory.create()
    progress = Progress(1_000, images=100, stream=io.StringIO(), clock=lambda: now)
    reporting = Reporting(MetricLog(directory, config=LogConfig(), settings={}), progress)
    phase = Phase("denoise", ("network",))
    reporting.write(100, {"validation/denoise/loss": 1.0}, [phase])  # made up for where the run goes on: nothing was trained yet
    for images in (110, 130):
        now += 1.0
        reporting.write(images, {"denoise/loss": 1.0}, [phase])
        progress.update(images)
    reporting.log.close()
    first, second, third = read_metrics(directory.metrics_path)
    assert "images_per_second" not in first and first["memory_bytes"] > 0
    assert second["images_per_second"] == pytest.approx(10.0) and third["images_per_second"] > 12.0
