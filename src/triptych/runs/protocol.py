"""How a score was measured: as JSON, and in a line that goes with every table."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from triptych import __version__
from triptych.core.wording import counted
from triptych.evaluation.feature_space import Embedder
from triptych.evaluation.frechet import FEW_IMAGES
from triptych.runs.model_images import TRAINING
from triptych.runs.sides import Reference, Subject

_SHOWN = 8  # letters of a hash
_LEADERS = {"guide": "led by the classifier", "guide_with": "led away from"}


def protocol_of(subject: Subject, reference: Reference | None, embedder: Embedder | None) -> dict[str, Any]:
    """All that figures depend on, and what they are called by; JSON."""
    images, known = dict(subject.identity()), 0 if reference is None else len(reference)
    seen = {} if embedder is None else embedder.identity
    return {
        "made": images,
        "count": len(subject),
        "reference": None if reference is None else dict(reference.identity()),
        "reference_name": None if reference is None else reference.name,
        "reference_count": known or None,
        "few": len(subject) < FEW_IMAGES or 0 < known < FEW_IMAGES,
        "network": None if embedder is None else embedder.name,
        "network_sha256": seen.get("sha256"),
        "resize": seen.get("resize"),
        "side": seen.get("side"),
        "comparable": None if embedder is None else embedder.comparable,
        "quantization": "uint8",
        "seed": images.get("seed"),
        "weights": images.get("weights"),
        "sampler": images.get("settings"),
        "precision": images.get("precision"),
        "triptych": __version__,
    }


def protocol_line(*protocols: Mapping[str, Any], swept: str | None = None) -> str:
    """The protocol in one line, of several what they share. `swept`: a setting that had several values, and is left out."""
    first, *others = ((_images(each, swept), _reference(each), _network(each), *_looks(each), _program(each)) for each in protocols)
    return "; ".join(part for part in first if part and all(part in other for other in others))


def commit() -> str | None:
    """The commit of the source that runs; None where it does not lie in a clone."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _images(protocol: Mapping[str, Any], swept: str | None) -> str:
    images, weights, sampler = protocol["made"], protocol["weights"], protocol["sampler"] or {}
    of = f"{images['inputs']} of {images['path']}" if images.get("inputs") == TRAINING else images["path"]
    few = few_mark(protocol["count"], of_sets=protocol["network"] is not None)
    said = f"images of {of}" if swept == "count" else f"{protocol['count']} images{few} of {of}"
    if weights is None:
        return f"{said} ({_short(images.get('sha256'))}{_cut(images)})"
    how = {"checkpoint": f"{weights['weights']} at {weights['images']} images seen, {_short(weights['hash'])}"}
    how |= {
        name: f"{name} {sampler[name]}" for name in ("sampler", "steps", "guidance_scale", "temperature", "direction") if name in sampler
    }
    if (labels := images.get("labels")) is not None:
        how["labels"] = f"class {labels[0]}" if len(labels) == 1 else f"{len(labels)} labels in turn"
    how |= {name: f"{words} {_short(images[name])}" for name, words in _LEADERS.items() if name in images}
    calls = protocol.get("network_calls")
    if calls not in (None, sampler.get("steps")) and swept is None:
        how["calls"] = counted(calls, "network call")
    how |= {"seed": f"seed {protocol['seed']}", "precision": protocol["precision"]}
    how.pop("checkpoint" if swept in ("weights", "ema-length") else (swept or "").replace("-", "_"), None)
    return f"{said} ({', '.join(how.values())})"


def _reference(protocol: Mapping[str, Any]) -> str:
    reference = protocol["reference"]
    if reference is None:
        return ""
    count = protocol["reference_count"]
    few = few_mark(count, of_sets=protocol["network"] is not None) if count else ""
    digest = reference.get("sha256") or (reference.get("weights") or {}).get("hash")
    return f"reference: {f'{count} ' if count else ''}{protocol['reference_name']} ({_short(digest)}{_cut(reference)}){few}"


def _cut(images: Mapping[str, Any]) -> str:
    """The size to which images of a set were cut for this; empty for those that were taken as they are."""
    if "image_size" not in (images.get("preparation") or {}):
        return ""
    height, width = images["size"]
    return f", cut to {width}x{height}"


def few_mark(count: int, *, of_sets: bool) -> str:
    """What is said behind a number of images that is small for figures of sets; nothing for those of single images, which have no bias."""
    return f" (few: below {FEW_IMAGES})" if of_sets and count < FEW_IMAGES else ""


def _network(protocol: Mapping[str, Any]) -> str:
    if protocol["network"] is None:
        return ""
    comparable = "" if protocol["comparable"] else ", not comparable with published figures"
    digest = "random weights" if protocol["network_sha256"] is None else _short(protocol["network_sha256"])
    return f"{protocol['network']} ({digest}), {protocol['side']} px {protocol['resize']}, 8-bit images{comparable}"


def _looks(protocol: Mapping[str, Any]) -> Iterator[str]:
    """What looked at single images, for each metric of these by a classifier or a network."""
    for name, identity in protocol.get("single_images", {}).items():
        look = identity.get("classifier", identity)
        if "run" in look:
            yield f"{name} by {look['run']} ({look['weights']} at {look['images']} images seen, {_short(look['hash'])})"
        elif "network" in look:
            yield f"{name} by {look['network']} ({_short(look['sha256'])})"


def _program(protocol: Mapping[str, Any]) -> str:
    known = protocol.get("commit")
    return f"Triptych {protocol['triptych']}" + (f" ({_short(known)})" if known else "")


def _short(digest: str | None) -> str:
    return "unknown" if digest is None else digest[:_SHOWN]
