"""The log of a run: metrics.jsonl, log.txt, and on request TensorBoard and Weights & Biases.

metrics.jsonl holds one object per line: {"images": images seen, "time": seconds of training so far, NAME: number, ...}. What
JSON has no number for is written as the text "nan", "inf" or "-inf", which Python's float() and `read_metrics` read. A resume
appends {"resumed_at": images}: that supersedes all earlier lines with more images. Nothing is ever truncated.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from triptych.core.errors import ConfigError, printable
from triptych.core.files import explain, explained, write_text
from triptych.core.reading import parsed_json
from triptych.engine.config import LogConfig
from triptych.engine.run_directory import RunDirectory

_NOT_FINITE = ("nan", "inf", "-inf")


def read_metrics(path: Path, *, last_bytes: int | None = None, kind: str = "") -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that still hold, in order: superseded, torn and `resumed_at` lines are left out.

    `last_bytes`: of the end of the file alone, for the newest figures of a long run. `kind`: only lines with a name that begins so; to
    parse the others would take most of the time and memory. Damaged lines are left out too; they are warned of where all lines are parsed.
    Raises OSError.
    """
    return _holding(_lines(path, last_bytes=last_bytes, kind=kind))


def _lines(path: Path, *, last_bytes: int | None = None, kind: str = "") -> Iterator[dict[str, Any]]:
    """The sound lines, superseded and `resumed_at` ones among them; see `read_metrics`."""
    if not path.exists():
        return
    marks = (f'"{kind}'.encode(), b'"resumed_at"')
    damaged: list[int] = []
    with path.open("rb") as file:
        file.seek(0 if last_bytes is None else max(0, path.stat().st_size - last_bytes))
        for number, line in enumerate(file, start=1):
            if kind and not any(mark in line for mark in marks):
                continue
            text = line.rstrip(b"\r\n").decode(errors="replace")
            try:
                values = measured(parsed_json(text))
            except ValueError:
                if text.strip("\0") and (text[0] != "{" or text[-1] == "}"):  # else it is torn: its process or machine died while it wrote
                    damaged.append(number)
            else:
                yield values
    if damaged and last_bytes is None and not kind:
        more = f" and {len(damaged) - 1} more are" if len(damaged) > 1 else " is"
        warnings.warn(f"{path}: line {damaged[0]}{more} damaged and left out", stacklevel=2)


def _holding(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that no resume after them superseded."""
    kept: list[dict[str, Any]] = []
    most = math.inf
    for values in reversed(list(lines)):
        if "resumed_at" in values:
            most = min(most, values["resumed_at"])
        elif values["images"] <= most:
            kept.append(values)
    return kept[::-1]


def _times(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The lines without what was measured, which of a long log takes a gigabyte."""
    for values in lines:
        yield {name: values[name] for name in ("images", "resumed_at", "time") if name in values}


def measured(values: Any) -> dict[str, Any]:
    """The numbers of a line. Raises ValueError where it is no line of this log."""
    if not isinstance(values, dict) or not isinstance(values.get("resumed_at", values.get("images")), int):
        raise ValueError
    numbers = {name: float(value) if value in _NOT_FINITE else value for name, value in values.items()}
    try:
        return {name: value if math.isfinite(value) else float(value) for name, value in numbers.items()}
    except (TypeError, OverflowError):  # no number, or one of hundreds of digits
        raise ValueError from None


class MetricLog:
    """Writes the log of one start of a run. For the process of rank 0."""

    def __init__(
        self, run: RunDirectory, *, config: LogConfig, settings: Mapping[str, Any], show: Callable[[str], None] = lambda message: None
    ) -> None:
        """`settings`: the run's whole configuration, for Weights & Biases; `show`: puts a line of text on the terminal.

        Raises ConfigError when a sink's package is missing, CheckpointError when the files cannot be written.
        """
        self._run, self._show = run, show
        self._began, self._earlier_seconds = time.monotonic(), 0.0
        self._sinks: list[_TensorBoard | _WeightsAndBiases] = []
        if config.tensorboard:
            self._sinks.append(_TensorBoard(run.tensorboard))
        if config.wandb != "off":
            self._sinks.append(_WeightsAndBiases(run, config=config, settings=settings))
        self._metrics, self._log = _open_to_append(run.metrics_path), _open_to_append(run.log_path)

    def resumed(self, images: int) -> None:
        """Notes that training goes on from a checkpoint after `images` images; call it before the first `write`."""
        self._append({"resumed_at": images})
        kept = _holding(_times(_lines(self._run.metrics_path)))
        self._earlier_seconds = max((float(line.get("time", 0.0)) for line in kept), default=0.0)
        for sink in self._sinks:
            sink.resumed(images)

    def write(self, images: int, values: Mapping[str, float]) -> None:
        """Appends one line of measurements after `images` images. Raises CheckpointError when the disk is full."""
        elapsed_seconds = self._earlier_seconds + time.monotonic() - self._began
        self._append({"images": images, "time": round(elapsed_seconds, 3), **values})
        for sink in self._sinks:
            sink.write(images, values)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The context whose time is no time of training."""
        entered = time.monotonic()
        try:
            yield
        finally:
            self._began += time.monotonic() - entered

    def text(self, message: str) -> None:
        """Shows a message on the terminal and appends it to log.txt with the date."""
        message = printable(message)
        self._show(message)
        try:
            _write(self._log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n".encode())
        except OSError as error:  # a message is often the last word on why a run ends: it must not hide that
            self._show(f"cannot write {self._run.log_path}: {explain(error)}")

    def image(self, images: int, path: Path) -> None:
        """Hands a grid of samples to the sinks."""
        for sink in self._sinks:
            sink.image(images, path)

    def close(self) -> None:
        """Closes files and sinks; may be called twice."""
        for sink in self._sinks:
            sink.close()
        self._sinks = []
        self._metrics.close()
        self._log.close()

    def _append(self, values: Mapping[str, Any]) -> None:
        finite = {name: value if not isinstance(value, float) or math.isfinite(value) else str(value) for name, value in values.items()}
        with explained(f"write {self._run.metrics_path}"):
            _write(self._metrics, (json.dumps(finite, allow_nan=False) + "\n").encode())
            os.fsync(self._metrics.fileno())


def _write(file: IO[bytes], line: bytes) -> None:
    """Writes all of it to an unbuffered file, which may take a part at a time. Raises OSError."""
    while line:
        line = line[file.write(line) :]


def _open_to_append(path: Path) -> IO[bytes]:
    """The file, unbuffered, positioned at the start of a line: a torn last line is ended first."""
    with explained(f"write {path}"):
        file = path.open("ab+", buffering=0)
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        return file


class _TensorBoard:
    """Scalars and images over images seen."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("log.tensorboard", 'needs the package tensorboard: pip install "triptych[logs]"') from error
        self._folder, self._make = folder, lambda purge_step: SummaryWriter(str(folder), purge_step=purge_step)
        self._writer: SummaryWriter | None = None

    def resumed(self, images: int) -> None:
        with explained(f"write {self._folder}"):
            self._writer = self._make(images + 1)  # hides points at this step and later

    def write(self, images: int, values: Mapping[str, float]) -> None:
        with explained(f"write {self._folder}"):
            writer = self._open()
            for name, value in values.items():
                writer.add_scalar(name, value, global_step=images)
            writer.flush()

    def image(self, images: int, path: Path) -> None:
        import numpy as np
        from PIL import Image

        with explained(f"write {self._folder}"), Image.open(path, formats=("PNG",)) as picture:
            self._open().add_image("samples", np.array(picture.convert("RGB")), global_step=images, dataformats="HWC")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> Any:
        if self._writer is None:
            self._writer = self._make(None)
        return self._writer


class _WeightsAndBiases:
    """One run there for one run here, whatever the number of starts.

    Its own step counter cannot go back, so curves are drawn over the metric "images"; points that a resume supersedes stay.
    """

    def __init__(self, run: RunDirectory, *, config: LogConfig, settings: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("log.wandb", 'needs the package wandb: pip install "triptych[logs]"') from error
        self._wandb = wandb
        path = run.wandb_id_path
        if not path.exists() or not path.read_text(encoding="utf-8").strip():
            write_text(path, secrets.token_hex(4) + "\n")
        try:
            self._run = wandb.init(
                project=config.wandb_project,
                name=run.root.resolve().name,
                id=path.read_text(encoding="utf-8").strip(),
                resume="allow",
                mode="online" if config.wandb == "online" else "offline",
                dir=str(run.root),
                config=dict(settings),
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.Error as error:
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError("log.wandb", f'Weights & Biases did not start: {reason} ("offline" needs no account)') from error
        self._run.define_metric("images")
        self._run.define_metric("*", step_metric="images")

    def resumed(self, images: int) -> None:
        self._run.log({"images": images, "resumed_at": images})

    def write(self, images: int, values: Mapping[str, float]) -> None:
        self._run.log({"images": images, **values})

    def image(self, images: int, path: Path) -> None:
        self._run.log({"images": images, "samples": self._wandb.Image(str(path))})

    def close(self) -> None:
        self._run.finish()
