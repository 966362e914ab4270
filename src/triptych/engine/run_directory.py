"""The folder of a run: where its files lie, its configuration, and the lock that keeps a second training out."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triptych.core.errors import CheckpointError, nearest
from triptych.core.files import explain, explained, real_path, remove, sweep, sync, write_text
from triptych.core.locks import Held, Lock
from triptych.core.reading import parsed_json, read_regular

FORMAT = 1
REPLACED = ".old-"
"""Prefix of a checkpoint that is being replaced by another of the same number."""
_MOST_NAMED = 8
_MOST_BYTES = 2**26  # of a config.json; one with a million class names has 20 MB
SNAPSHOTS = "snapshots"
"""The folder of a run that has its snapshots."""
_OWN = {"autoencoder", "checkpoints", SNAPSHOTS, "averages", "samples", "evaluations", "profile", "records", "tensorboard", "wandb"}
_OWN |= {"first_frames", "metrics.jsonl", "log.txt", "report.html", "wandb_id.txt", "left_out.json", "bad_images.json"}
_RUNS_IN_RUNS = ("autoencoder", "first_frames")
_LOGS = {".out", ".err", ".log"}  # what a shell or a batch system redirects into the folder before the run starts


class RunDirectory:
    """A run on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: Lock | None = None
        self.config_path = root / "config.json"
        "The configuration, every default written out."
        self.checkpoints = root / "checkpoints"
        self.snapshots = root / SNAPSHOTS
        "The folder of snapshots of the power-function averages, each as a checkpoint that has nothing else."
        self.averages = root / "averages"
        "The folder of averages that were made of snapshots."
        self.samples = root / "samples"
        "The folder of sample grids."
        self.metrics_path = root / "metrics.jsonl"
        "Measurements, one JSON object per line."
        self.log_path = root / "log.txt"
        "What the terminal showed, with dates."
        self.left_out = root / "left_out.json"
        "The run's copy of the list of images that are left out (data.skip)."
        self.bad_images = root / "bad_images.json"
        "The images that could not be read, in the same form."
        self.tensorboard = root / "tensorboard"
        self.profile = root / "profile"
        "The folder of the trace and the table of a profile."
        self.records = root / "records"
        "The folder of what each process was doing when all waited for one in vain."
        self.wandb_id_path = root / "wandb_id.txt"
        "The id of the run in Weights & Biases."

    @property
    def autoencoder(self) -> RunDirectory:
        """Where a run on latents keeps a copy of the autoencoder, which is a run of its own."""
        return RunDirectory(self.root / "autoencoder")

    @property
    def first_frames(self) -> RunDirectory:
        """Where a run of clips keeps the model that makes their first frames, where it has one: a run of its own."""
        return RunDirectory(self.root / "first_frames")

    def exists(self) -> bool:
        """Whether a run was started here."""
        return os.path.isfile(self.config_path)  # nothing, where it may not be looked at

    def create(self) -> None:
        """Makes the folder and its parts; a run that is there stays as it is.

        Raises CheckpointError when the path is a file, cannot be made or written, or is a folder with files that are not of a run.
        """
        self._make((self.root, self.checkpoints, self.samples), parents=True)

    def complete(self) -> None:
        """Makes what parts a run lacks. Raises CheckpointError where there is none, or none any more, or nothing can be written there."""
        self.require()
        self._make((self.checkpoints, self.samples), parents=False)

    def check(self) -> None:
        """Raises CheckpointError where no run is or can be begun: at a file, in a folder of other files, or among those of a run."""
        place = self.root.absolute()
        try:
            there = next(folder for folder in (place, *place.parents) if folder.exists())
            if not there.is_dir():
                raise CheckpointError(f"cannot use {self.root} as a run directory: a file is in the way")
            foreign = sorted(path.name for path in there.iterdir() if not _belongs(path)) if there == place else []
        except OSError as error:
            raise CheckpointError(f"cannot read the run directory {self.root}: {explain(error)}") from error
        around = None if self.root.name in _RUNS_IN_RUNS else run_that_keeps(self.root)
        if around is not None and not self.exists():
            raise CheckpointError(f"{self.root} cannot be a run: the run {around} keeps its own files there; choose another directory")
        if foreign and not self.exists():  # looked for afterwards: another process may be making the run
            raise CheckpointError(
                f"{self.root} is not a run: it has no config.json but holds {foreign[0]}"
                + (f" and {len(foreign) - 1} more" if len(foreign) > 1 else "")
                + "; choose a new or an empty directory"
            )

    def _make(self, folders: Sequence[Path], *, parents: bool) -> None:
        self.check()
        try:
            for folder in folders:
                folder.mkdir(parents=parents, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise CheckpointError(f"cannot use {self.root} as a run directory: a file is in the way") from None
        except OSError as error:
            raise CheckpointError(f"cannot make the run directory {self.root}: {explain(error)}") from error
        for folder in (*folders, self.snapshots):
            if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):  # the first checkpoint would find it, and be lost
                raise CheckpointError(
                    f"cannot write to {folder}: no permission to write there; change that (chmod, chown), or choose another directory"
                )

    def require(self) -> None:
        """Raises CheckpointError where the run was removed or renamed while it was trained: nobody would find further files.

        So it does where another process has begun a run in its place: that one's files would be replaced, and gone on from.
        """
        try:
            self.config_path.stat()
        except (FileNotFoundError, NotADirectoryError):
            gone = f"{self.root} was removed or renamed while the run was trained: nothing can be saved there any more"
            raise CheckpointError(gone) from None
        except OSError as error:
            raise CheckpointError(f"cannot read {self.config_path}: {explain(error)}") from error
        if self._lock is not None and self._lock.is_lost():
            gone = f"{self.root} was removed or renamed while the run was trained, and another one was begun there"
            raise CheckpointError(f"{gone}: nothing of this one can be saved there any more")

    def write_config(self, document: dict[str, Any]) -> None:
        """Writes config.json, whole or not at all, with a format number in front."""
        with explained(f"write {self.config_path}"):
            write_text(self.config_path, json.dumps({"format": FORMAT, **document}, indent=2) + "\n")
            sync(self.root)

    def read_config(self) -> dict[str, Any]:
        """The document of `write_config`. Raises CheckpointError where there is no run or config.json cannot be read."""
        try:
            document = parsed_json(read_regular(self.config_path, most=_MOST_BYTES).decode("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            if self.root.is_file():
                raise CheckpointError(f"{self.root} is a file: give the folder of the run{_folder_of(self.root)}") from None
            raise CheckpointError(f"no run in {self.root}: there is no config.json{self._elsewhere()}") from None
        except OSError as error:
            raise CheckpointError(f"cannot read {self.config_path}: {explain(error)}") from error
        except ValueError as error:
            raise CheckpointError(f"{self.config_path} is damaged: {error}") from None
        if not isinstance(document, dict) or not isinstance(document.get("format"), int):
            raise CheckpointError(f"{self.config_path} is damaged: it has no format number")
        version = document.pop("format")
        if version != FORMAT:
            raise CheckpointError(f"{self.config_path} has format {version}, this version of Triptych reads {FORMAT}; update Triptych")
        return document

    def lock(self) -> Lock:
        """The exclusive right to train here. Raises CheckpointError when another process has it."""
        try:
            with explained(f"write to the run directory {self.root}"):
                self._lock = Lock(self.root / ".lock")
                return self._lock
        except Held as holder:
            raise CheckpointError(f"another process ({holder}) trains in {self.root}: stop it, or choose another directory") from None

    def sweep(self) -> None:
        """Removes temporary files that killed writers left, also those of sample grids. Only for the holder of the lock."""
        for folder in (self.root, self.samples):
            sweep(folder)
        for leftover in (*self.root.glob(".config.json.*"), *self.samples.glob(".*.png.*")):  # the names that earlier versions gave
            if leftover.suffix[1:].isdecimal():
                remove(leftover)

    def _elsewhere(self) -> str:
        """A hint at runs elsewhere: one that the folder is a part of, or in the folder, or beside it under a similar name."""
        inside, around = named_runs(self.root), run_that_keeps(self.root)
        if around is not None:
            return f"; it belongs to the run {around}"
        if inside is None:
            return nearest(self.root.name, _runs_in(self.root.parent))
        return f"; it holds the runs {inside} (triptych runs {shlex.quote(str(self.root))} shows them)"


def _folder_of(file: Path) -> str:
    """The run that a file lies in, as a hint; nothing where it lies in none."""
    run = next((str(folder) for folder in file.parents if RunDirectory(folder).exists()), None)
    return "" if run is None else f", {run}"


def _runs_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if RunDirectory(path).exists())
    except OSError:
        return []


def named_runs(folder: Path) -> str | None:
    """The names of the runs in a folder, as a list of text, not too long; None: there are none."""
    inside = _runs_in(folder)
    more = f" and {len(inside) - _MOST_NAMED} more" if len(inside) > _MOST_NAMED else ""
    return f"{', '.join(inside[:_MOST_NAMED])}{more}" if inside else None


def run_that_keeps(path: Path) -> Path | None:
    """The run whose folder `path` is, or whose config.json, or of whose own folders (checkpoints) it is one or lies in one.

    A file in its folder evaluations is none of these: evaluations may be written there by any name.
    """
    path = real_path(path)
    for root in (path, *path.parents):
        first = path.relative_to(root).parts[:1]
        named = bool(first) and (first[0] in _OWN or path == RunDirectory(root).config_path)
        evaluation = first == ("evaluations",) and path.suffix == ".json"
        if (not first or named) and not evaluation and RunDirectory(root).exists():
            return root
    return None


def run_and_checkpoint(place: str | Path) -> tuple[Path, str | None]:
    """The folder of a run, and of RUN/checkpoints/000512000 the name of the checkpoint, "512000"; None: the place is the run's.

    Of RUN/snapshots/000512000 likewise.
    """
    path = Path(place)
    if path.parent.name not in ("checkpoints", SNAPSHOTS) or not path.name.isdecimal() or RunDirectory(path).exists():
        return path, None
    return path.parent.parent, str(int(path.name))


def checkpoint_path(folder: Path, images_seen: int) -> Path:
    """Where the checkpoint made after `images_seen` images is, or will be."""
    path = folder / f"{images_seen:09d}"
    aside = folder / f"{REPLACED}{path.name}"
    return aside if not os.path.exists(path) and os.path.exists(aside) else path  # what cannot be looked at is said by who reads it


def list_checkpoints(folder: Path) -> list[int]:
    """Images seen of every finished checkpoint, ascending; empty where there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name.removeprefix(REPLACED) for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {explain(error)}") from error
    return sorted({int(name) for name in names if re.fullmatch(r"\d{9,}", name)})


def _belongs(path: Path) -> bool:
    """Whether a run may find `path` in its folder: its own parts from a start that was cut short, hidden files, redirected output."""
    return path.name in _OWN or path.name.startswith(".") or (path.suffix in _LOGS and path.is_file())
