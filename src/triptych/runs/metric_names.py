"""What the metrics of images are called, which of them are asked for, and what their figures are called."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from triptych.core.errors import ConfigError, nearest
from triptych.core.given import shown
from triptych.evaluation.catalogue import METRICS
from triptych.evaluation.clip_metric import CLIP_METRICS
from triptych.evaluation.feature_space import SPACES, Embedder
from triptych.evaluation.pair_metric import PAIR_METRICS
from triptych.evaluation.set_metric import SET_METRICS
from triptych.runs.sides import RunSide, Subject

FRECHET, FID, INCEPTION, COPIES = "frechet", "fid", "inception", "copies"
OF_IMAGES = (FID, *SET_METRICS, *PAIR_METRICS)
"""Metrics of images, in sets and one after the other."""
USUAL = ("frechet", "kid", "precision", "recall")
"""Metrics where nobody names some; of statistics alone the first."""


@dataclass
class Wanted:
    """The metrics that are asked for, without those that cannot be measured."""

    names: list[str]
    missing: dict[str, str] = field(default_factory=dict)
    "Why one cannot be measured."

    def drop(self, names: Sequence[str], reason: object) -> None:
        """Takes metrics out. Raises ConfigError where none is left."""
        for name in [name for name in self.names if name in names]:
            self.names.remove(name)
            self.missing[name] = str(reason)
        if not self.names:
            reasons: dict[str, list[str]] = {}
            for name, why in self.missing.items():
                reasons.setdefault(why, []).append(name)
            raise ConfigError("metrics", "; ".join(f"{', '.join(those)} cannot be measured: {why}" for why, those in reasons.items()))

    def of_sets(self) -> list[str]:
        """Those that compare sets through a network."""
        return [name for name in self.names if metric_name(name) in SET_METRICS]

    def of_images(self) -> list[str]:
        """Those that look at one image after the other."""
        return [name for name in self.names if name in PAIR_METRICS]


def metric_name(name: str) -> str:
    """The metric that a name asks for: fid is the Frechet distance in one space."""
    return FRECHET if name == FID else name


def metric_names(names: Sequence[str] | None) -> list[str]:
    """The metrics that are asked for, each once; None: the usual ones. Raises ConfigError for a name that is not known."""
    asked = USUAL if names is None else names
    require_known(asked, OF_IMAGES)
    return list(dict.fromkeys(asked))


def require_known(names: Sequence[str], known: Collection[str]) -> None:
    """Raises ConfigError where these are no names, or one is not among the `known` ones; of a metric measured elsewhere it says where."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError("metrics", f"got {shown(names)}, expected a list of names")
    everything = [*METRICS, *OF_IMAGES, *CLIP_METRICS]
    for name in names:
        if name in known:
            continue
        if name not in everything:
            raise ConfigError("metrics", f'unknown metric "{name}"{nearest(name.lower(), everything)} (there is {", ".join(everything)})')
        call = "; in Python by run.evaluate" if name in METRICS else "; in Python by run.score" if name in OF_IMAGES else ""
        there = f"is measured by triptych evaluate RUN --metrics {name}{call}"
        raise ConfigError("metrics", f"got {name}, which {there}; here there is {', '.join(known)}")


def needs_reference(name: str, subject: Subject) -> bool:
    """Whether a metric compares `subject` with a reference; the truth of a run's images is its own."""
    if name in PAIR_METRICS:
        return PAIR_METRICS[name].needs == "truth" and not isinstance(subject, RunSide)
    return SET_METRICS[metric_name(name)].reference != "none"


def figure_name(name: str, embedder: Embedder | None) -> str:
    """What a figure is called: the published names stand for Inception alone, with its usual weights and resize."""
    if embedder is None or name not in (FRECHET, FID):
        return name
    return FID if is_fid(embedder) else f"fd-{embedder.name}"


def is_fid(embedder: Embedder) -> bool:
    """Whether the Frechet distance in a space is the one that is called FID."""
    return embedder.name == INCEPTION and embedder.identity["resize"] == SPACES[INCEPTION].pixels.resize
