"""What lies in a run's directory, and in what two runs differ, for scripts that break runs and let them go on."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

from triptych.engine.metric_log import read_metrics

TIMING = {"time", "images_per_second", "memory_bytes"}
"""What metrics have of the clock and the machine."""


def unfinished(run: Path) -> list[Path]:
    """Temporary files and folders anywhere in a run."""
    places = (run, run / "checkpoints", run / "samples")
    return [path for folder in places if folder.is_dir() for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock"]


def finished(run: Path) -> list[Path]:
    """The run's complete checkpoints, oldest first."""
    folder = run / "checkpoints"
    return sorted(path for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []


def newest(run: Path) -> int:
    """Images seen by the newest checkpoint; 0: there is none."""
    return max((int(path.name) for path in finished(run)), default=0)


def differences(unbroken: Path, run: Path) -> list[str]:
    """In what a run differs from the unbroken one; nothing: in nothing but speed, time and the lines of its log."""
    found = []
    ours, theirs = files(run), files(unbroken)
    found += [f"left over: {name}" for name in sorted(ours - theirs)] + [f"missing: {name}" for name in sorted(theirs - ours)]
    compared = [name for name in sorted(ours & theirs) if name.startswith(("checkpoints/", "samples/")) or name == "config.json"]
    found += [f"other bytes: {name}" for name in compared if digest(run / name) != digest(unbroken / name)]
    if metrics(run) != metrics(unbroken):
        pairs = zip(metrics(run), metrics(unbroken), strict=False)
        first = next((mine["images"] for mine, other in pairs if mine != other), "the end")
        found.append(f"other metrics, first at {first} images ({len(metrics(run))} lines for {len(metrics(unbroken))})")
    return found


def files(run: Path) -> set[str]:
    """All files and folders of a run, by their path in it, but for records of waits in vain, which an unbroken one does not have."""
    paths = {path.relative_to(run) for path in run.rglob("*")}
    return {str(path) for path in paths if path.parts[0] != "records"}


def digest(path: Path) -> str | None:
    """SHA-256 of a file; of a folder None, but that of the tensors of one to which several processes wrote their parts.

    Which of them writes what all have, and the order in a file, is not fixed; so neither are the files, nor their hashes in state.json.
    """
    if path.is_dir():
        files = [] if path.name.isdecimal() else path.glob("*.safetensors")
        parts = sorted(part for file in files for part in _parts(file))
        return hashlib.sha256(repr(parts).encode()).hexdigest() if parts else None
    if path.suffix == ".safetensors" and not path.parent.name.isdecimal():
        return None
    content = path.read_bytes()
    if path.name == "state.json" and any(each.is_dir() for each in path.parent.iterdir()):
        state = json.loads(content)
        content = json.dumps(state | {"files": sorted(state["files"]), "digest": None}, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _parts(path: Path) -> list[tuple[str, str, str, str, str]]:
    """Name, place in the whole, type, shape and hash of each tensor of a file."""
    content = path.read_bytes()
    length = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:length])
    places = json.loads(header.pop("__metadata__")["DCP_SHARDING_INFO"])
    found = []
    for name, tensor in header.items():
        begin, end = (length + offset for offset in tensor["data_offsets"])
        found.append((name, str(places[name]), tensor["dtype"], str(tensor["shape"]), hashlib.sha256(content[begin:end]).hexdigest()))
    return found


def metrics(run: Path) -> list[dict[str, float]]:
    """The lines of metrics that hold, without speed and time."""
    return [{name: value for name, value in line.items() if name not in TIMING} for line in read_metrics(run / "metrics.jsonl")]
