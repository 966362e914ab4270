"""The inception score (Salimans et al. 2016, https://arxiv.org/abs/1606.03498, section 4) of the logits of a classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from triptych.core.errors import DataError
from triptych.evaluation.feature_set import FeatureSet, Figure, SetMetricConfig

_ROWS = 8192


def split_scores(logits: np.ndarray, splits: Sequence[slice]) -> tuple[np.ndarray, np.ndarray]:
    """exp(E KL(p(y | x) || p(y))) of each split (s,), and the standard error of each, in float64.

    p(y | x) is the softmax of an image's logits (n, classes), p(y) its mean over the images of the split. The error is the score times
    that of the mean KL: the influence of an image on p(y) cancels. It is NaN for a split of one image.
    """
    found = [_score(logits[split]) for split in splits]
    return np.array([score for score, _ in found]), np.array([error for _, error in found])


def _score(logits: np.ndarray) -> tuple[float, float]:
    entropy, marginal = np.empty(len(logits)), np.zeros(logits.shape[1])
    for rows in _blocks(len(logits)):
        log_p = _log_softmax(logits[rows])
        p = np.exp(log_p)
        entropy[rows] = (p * log_p).sum(1)
        marginal += p.sum(0)
    log_marginal = np.log(np.maximum(marginal / len(logits), np.finfo(float).tiny))
    divergence = np.concatenate([entropy[rows] - np.exp(_log_softmax(logits[rows])) @ log_marginal for rows in _blocks(len(logits))])
    score = np.exp(divergence.mean())
    return score, score * divergence.std(ddof=1) / len(logits) ** 0.5 if len(logits) > 1 else np.nan


def _blocks(count: int) -> list[slice]:
    return [slice(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS)]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x -= x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def equal_splits(count: int, number: int) -> list[slice]:
    """`number` consecutive splits, from i n / number to (i + 1) n / number, rounded down. Raises DataError for fewer images than splits."""
    if count < number:
        raise DataError(f"{number} splits need at least as many images, and there are {count}")
    return [slice(i * count // number, (i + 1) * count // number) for i in range(number)]


def sized_splits(count: int, size: int) -> list[slice]:
    """Consecutive splits of `size`; the last one may be smaller. guided-diffusion's are of 5000."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def inception_score(logits: np.ndarray, splits: int = 10, *, split_size: int | None = None) -> float:
    """The mean score of `splits` equal consecutive splits of logits (n, classes), or of splits of `split_size`.

    Inception's logits are those without the bias. Raises DataError for fewer images than splits.
    """
    cuts = equal_splits(len(logits), splits) if split_size is None else sized_splits(len(logits), split_size)
    return float(split_scores(logits, cuts)[0].mean())


def scored(cut: Callable[[int], list[slice]]) -> Callable[[FeatureSet, FeatureSet | None, SetMetricConfig], Figure]:
    """The metric whose splits `cut` gives for a number of images.

    Its error is that of other made sets as large, from the errors within the splits. Details: splits; split_std, the spread over them,
    which many papers print as if it were an error.
    """

    def measure(made: FeatureSet, reference: FeatureSet | None, settings: SetMetricConfig) -> Figure:
        logits = made.array("logits")
        splits = cut(len(logits))
        scores, errors = split_scores(logits, splits)
        error = float(np.sqrt(np.square(errors).sum()) / len(splits))
        details = {"splits": len(splits), "split_std": float(scores.std())}
        return Figure(float(scores.mean()), error if np.isfinite(error) else None, details)

    return measure
