"""Lines of metrics: the speed that they tell. When the page is written, and which grid the log gets."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tests.engine.toys import Denoiser, make_loop, run, seeded
from triptych.core.model import Phase
from triptych.engine.callables import Evaluated, Evaluation
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


@pytest.mark.parametrize(
    "settings",
    [
        {"sample_every": 24},
        {"validate_every": 24, "validate": lambda watch: {"loss": float("nan")}},
        {"evaluate_every": 24, "evaluation": Evaluation(lambda watch: Evaluated({}, "9 samples"))},
        {"checkpoint_every": 24},
    ],
)
def test_the_page_is_written_after_what_is_worth_looking_at(tmp_path: Path, settings: dict[str, Any]) -> None:
    loop, pages = make_loop(seeded(Denoiser), tmp_path, log=LogConfig(every=8), **settings), list[int]()
    assert loop.reporting is not None
    loop.reporting.page = lambda: pages.append(loop.images_seen)
    run(loop)
    assert pages == [24, 48, 64]


def test_of_several_grids_the_log_gets_that_of_samples_alone(tmp_path: Path) -> None:
    grids = {ending: lambda path, watch: path.touch() for ending in ("-real", "", "-cold")}
    loop, shown = make_loop(seeded(Denoiser), tmp_path, log=LogConfig(), grids=grids, total_images=8), list[tuple[int, str]]()
    assert loop.reporting is not None
    loop.reporting.log.image = lambda images, path: shown.append((images, path.name))  # type: ignore[method-assign]
    run(loop)
    assert shown == [(8, "000000008.png")] and len(list((tmp_path / "samples").iterdir())) == 3
