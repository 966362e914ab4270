from __future__ import annotations

import json
import math
import random
import re
import sys
import tracemalloc
import warnings
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest
from PIL import Image

from triptych.core.errors import CheckpointError, ConfigError
from triptych.engine import metric_log
from triptych.engine.config import LogConfig
from triptych.engine.metric_log import MetricLog, read_metrics
from triptych.engine.run_directory import RunDirectory

PLAIN = LogConfig()


def open_log(root: Path, config: LogConfig = PLAIN, **options) -> closing[MetricLog]:
    run = RunDirectory(root)
    run.create()
    return closing(MetricLog(run, config=config, settings={"train": {"seed": 3}}, **options))


def test_lines_come_back(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.write(100, {"step": 10, "loss": 0.1 + 0.2})
        log.write(200, {"step": 20, "loss": 1e-30})
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert (first["images"], first["step"], first["loss"], second["loss"]) == (100, 10, 0.1 + 0.2, 1e-30)
    assert isinstance(first["images"], int) and 0 <= first["time"] <= second["time"] < 60
    assert read_metrics(tmp_path / "absent") == []


def test_what_is_not_finite_is_valid_json_and_comes_back(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.write(1, {"a": math.nan, "b": math.inf, "c": -math.inf})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert (line["a"], line["b"], line["c"]) == ("nan", "inf", "-inf")
    (read,) = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(read["a"]) and read["b"] == math.inf and read["c"] == -math.inf


def test_a_resume_supersedes_what_came_after_it(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for images in (100, 200, 300):
            log.write(images, {"loss": 1.0})
    with open_log(tmp_path) as log:
        log.resumed(200)
        log.write(250, {"loss": 2.0})
        log.write(300, {"loss": 2.0})
    with open_log(tmp_path) as log:
        log.resumed(250)
        log.write(310, {"loss": 3.0})
    read = [(line["images"], line["loss"]) for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert read == [(100, 1.0), (200, 1.0), (250, 2.0), (310, 3.0)]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 8  # nothing is truncated


def test_time_goes_on_from_the_line_resumed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ({"images": 50, "time": 20.0}, {"images": 100, "time": 50.0}, {"images": 200, "time": 90.0})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    clock = SimpleNamespace(now=7.0)
    monkeypatch.setattr(metric_log, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with open_log(tmp_path) as log:
        clock.now += 1.0
        log.resumed(100)
        clock.now += 2.3456
        with log.paused():
            clock.now += 1000
        log.write(150, {})
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["time"] == 53.346


def test_time_begins_at_0_where_a_run_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"images": 50, "time": 20.0}\n')
    monkeypatch.setattr(metric_log, "time", SimpleNamespace(monotonic=lambda: 7.0))
    with open_log(tmp_path) as log:
        log.resumed(0)
        log.write(50, {})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"images": 50, "time": 0.0}]


def test_to_go_on_takes_a_small_part_of_the_memory_of_a_long_log(tmp_path: Path) -> None:
    line = {"images": 1, "time": 5.0} | {f"phase/loss_{k}": 0.5 for k in range(20)}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(line)}\n" * 1_000)
    peaks = []
    with open_log(tmp_path) as log:
        for work in (lambda: log.resumed(1), lambda: read_metrics(tmp_path / "metrics.jsonl")):
            tracemalloc.start()
            work()
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[0] < peaks[1] / 3


def test_the_end_of_a_long_log_begins_within_a_line_and_nothing_is_said_of_that(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"images": {k}, "loss": 1.0}}\n' for k in range(10, 20)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [line["images"] for line in read_metrics(path, last_bytes=70)] == [18, 19]


def test_what_holds_is_what_no_later_resume_went_back_behind(tmp_path: Path) -> None:
    chance = random.Random(0)
    lines = [{("images" if chance.random() < 0.8 else "resumed_at"): chance.randrange(60)} for _ in range(200)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    later = [[other["resumed_at"] for other in lines[k:] if "resumed_at" in other] for k in range(len(lines))]
    expected = [line for line, resumes in zip(lines, later, strict=True) if "images" in line and all(line["images"] <= r for r in resumes)]
    assert read_metrics(path) == expected and 10 < len(expected) < 100


def test_a_log_of_many_resumes_is_gone_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    class Counted(int):
        def __le__(self, other: float) -> bool:
            compared.append(self)
            return int(self) <= other

        def __lt__(self, other: float) -> bool:
            compared.append(self)
            return int(self) < other

    path, count = tmp_path / "metrics.jsonl", 100
    path.write_text("".join(f'{{"images": {k}}}\n{{"resumed_at": {k}}}\n' for k in range(count)))
    monkeypatch.setattr(metric_log, "parsed_json", lambda text: {name: Counted(value) for name, value in json.loads(text).items()})
    assert len(read_metrics(path)) == count
    assert count <= len(compared) <= 2 * count


def test_of_one_kind_no_other_lines_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(metric_log, "parsed_json", lambda text: parsed.append(text) or json.loads(text))
    with open_log(tmp_path) as log:
        for images in range(20):
            log.write(images, {"loss": 1.0, "of validation/": 0.0})
            if images % 5 == 0:
                log.write(images, {"validation/loss": images / 2})
    path = tmp_path / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"resumed_at": 12}\nnull}\n{"images": 18, "validation/loss": 0.25}\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_metrics(path, kind="validation/")
    assert [(line["images"], line["validation/loss"]) for line in found] == [(0, 0.0), (5, 2.5), (10, 5.0), (18, 0.25)]
    assert len(parsed) == 6


@pytest.mark.parametrize("torn", ['{"images": 200, "lo', '{"images": 200, "loss": 2.0}', "\0\0\0\0"])
def test_a_torn_last_line_harms_no_other(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"images": 100, "loss": 1.0}\n' + torn)
    assert read_metrics(path)[0] == {"images": 100, "loss": 1.0}
    with open_log(tmp_path) as log:
        log.resumed(100)
        log.write(200, {"loss": 3.0})
    assert [(line["images"], line["loss"]) for line in read_metrics(path)] == [(100, 1.0), (200, 3.0)]
    assert path.read_text().splitlines()[1:3] == [torn, '{"resumed_at": 100}']


def test_text_is_shown_and_dated_and_appended(tmp_path: Path) -> None:
    shown: list[str] = []
    for message in ("started: é", "resumed"):
        with open_log(tmp_path, show=shown.append) as log:
            log.text(message)
    assert shown == ["started: é", "resumed"]
    lines = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert [re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)", line).group(1) for line in lines] == shown  # type: ignore[union-attr]


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    shown: list[str] = []
    with open_log(tmp_path, show=shown.append) as log:
        with pytest.raises(CheckpointError, match=r"cannot write .*metrics\.jsonl: No space left on device"):
            log.write(1, {})
        log.text("the last word")
    assert shown[0] == "the last word" and "cannot write" in shown[1] and "No space left" in shown[1]


@pytest.mark.parametrize(
    ("config", "package", "setting"),
    [(LogConfig(tensorboard=True), "torch.utils.tensorboard", "log.tensorboard"), (LogConfig(wandb="offline"), "wandb", "log.wandb")],
)
def test_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: LogConfig, package: str, setting: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r'pip install "triptych\[logs\]"') as caught:
        open_log(tmp_path, config)
    assert caught.value.setting == setting


def test_a_line_that_the_disk_takes_in_parts_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def __init__(self, file: IO[bytes]) -> None:
            self.file = file

        def write(self, line: bytes) -> int:
            return self.file.write(line[:7])

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    with open_log(tmp_path) as log:
        monkeypatch.setattr(log, "_metrics", Slow(log._metrics))
        monkeypatch.setattr(log, "_log", Slow(log._log))
        log.write(10, {"loss": 0.5})
        log.text("a long message")
    assert [line["loss"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [0.5]
    assert (tmp_path / "log.txt").read_text().endswith(" a long message\n")


def test_sinks_are_not_imported_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("wandb", "tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    with open_log(tmp_path) as log:
        log.write(1, {})
        log.image(1, tmp_path / "absent.png")


def picture(path: Path) -> Path:
    Image.fromarray(np.full((8, 8), 200, dtype=np.uint8)).save(path)
    return path


def test_tensorboard_reads_back_without_what_a_resume_superseded(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = LogConfig(tensorboard=True)
    with open_log(tmp_path, config) as log:
        for images in (100, 200, 300):
            log.write(images, {"loss": images / 100})
    with open_log(tmp_path, config) as log:
        log.resumed(200)
        log.write(250, {"loss": 7.0})
        log.image(250, picture(tmp_path / "samples" / "000000250.png"))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(100, 1.0), (200, 2.0), (250, 7.0)]
    (image,) = events.Images("samples")
    assert (image.step, image.width, image.height) == (250, 8, 8)


@pytest.mark.parametrize("what", ["resumed", "write", "image"])
def test_a_folder_of_tensorboard_that_cannot_be_made_is_named(tmp_path: Path, what: str) -> None:
    pytest.importorskip("tensorboard")
    with open_log(tmp_path, LogConfig(tensorboard=True)) as log:
        (tmp_path / "tensorboard").write_text("in the way")
        shown = picture(tmp_path / "samples" / "000000100.png")
        given = {"resumed": (100,), "write": (100, {"loss": 1.0}), "image": (100, shown)}[what]
        with pytest.raises(CheckpointError, match="^cannot write .*/tensorboard: "):
            getattr(log, what)(*given)


@pytest.mark.slow
def test_wandb_offline_keeps_one_id_across_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for variable, folder in (("WANDB_CONFIG_DIR", "config"), ("WANDB_CACHE_DIR", "cache"), ("WANDB_DATA_DIR", "data")):
        monkeypatch.setenv(variable, str(tmp_path / folder))
    root = tmp_path / "run"
    config = LogConfig(wandb="offline", wandb_project="panels")
    ids = []
    for start in range(2):
        with open_log(root, config) as log:
            if start:
                log.resumed(100)
            log.write(100 + start, {"loss": 1.5})
            log.image(100 + start, picture(root / "samples" / "grid.png"))
            assert wandb.run.offline and wandb.run.project == "panels" and wandb.run.config["train"] == {"seed": 3}
            ids.append(wandb.run.id)
    wandb.teardown()  # its writer is a process of its own: wait until that has written all
    assert ids[0] == ids[1] == (root / "wandb_id.txt").read_text().strip()
    records = sorted(root.glob(f"wandb/offline-run-*/run-{ids[0]}.wandb"))
    assert len(records) == 2 and all(b"loss" in path.read_bytes() and b"images" in path.read_bytes() for path in records)


def test_wandb_that_refuses_to_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")

    def refuse(**settings: object) -> None:
        raise wandb.errors.UsageError("api_key not configured (no-tty)\ncall wandb login")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ConfigError, match=r'log\.wandb: .*api_key not configured \(no-tty\) \("offline" needs no account\)') as caught:
        open_log(tmp_path, LogConfig(wandb="online"))
    assert "\n" not in str(caught.value)


DAMAGED = [
    "[]",
    '{"images": "many"}',
    '{"images": [4]}',
    '{"images": 4, "loss": [1.0]}',
    '{"images": 4, "loss": "low"}',
    '{"images": 4, "loss": null}',
    '{"images": 4, "time": {}}',
    '{"images": 4, "loss": 1' + "0" * 400 + "}",
    '{"loss": 1.0}',
    '{"resumed_at": "4"}',
    '{"resumed_at": null}',
    "[" * 100_000 + "}",
    '{"images": 4 "loss": 1}',
    "\ufffd\ufffd}",
]


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_left_out_with_a_warning(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"images": 2, "time": 1.5}}\n{line}\n{{"images": 6, "loss": "nan"}}\n')
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: line 2 is damaged and left out$"):
        kept = read_metrics(path)
    assert [values["images"] for values in kept] == [2, 6] and math.isnan(kept[1]["loss"])


def test_a_damaged_line_does_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"images": 2, "time": 10.0}\n{"images": "x", "time": []}\nnull}\n{"images": 3, "ti\n')
    with open_log(tmp_path) as log, pytest.warns(UserWarning, match=r"line 2 and 1 more are damaged and left out$"):
        log.resumed(2)
        log.write(4, {"loss": 1.0})
    with pytest.warns(UserWarning):
        lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["images"] for line in lines] == [2, 4] and lines[1]["time"] >= 10.0


def test_a_torn_line_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"images": 2}\n{"images": 3, "lo\n\0\0\0\n{"images": 4}\n{"ima')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [line["images"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [2, 4]


def test_a_line_is_on_the_disk_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "metrics.jsonl", list[str]()
    monkeypatch.setattr(metric_log.os, "fsync", lambda file: synced.append(path.read_text()))
    with open_log(tmp_path) as log:
        log.write(1, {"loss": 2.0})
    assert synced == [path.read_text()] and len(synced[0].splitlines()) == 1


def test_names_in_the_log_are_printable(tmp_path: Path) -> None:
    shown: list[str] = []
    with open_log(tmp_path, show=shown.append) as log:
        log.text("a\x1b[31m\nb\udcff.png: cannot be read")
    assert shown == [r"a\x1b[31m\nb\xff.png: cannot be read"]
    assert (tmp_path / "log.txt").read_text("utf-8").count("\n") == 1
    assert (tmp_path / "log.txt").read_text("utf-8").rstrip("\n").endswith(shown[0])
