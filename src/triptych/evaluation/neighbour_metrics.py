"""The metrics that rest on nearest neighbours.

Improved precision and recall: Kynkaanniemi et al. 2019, https://arxiv.org/abs/1904.06991. Density and coverage: Naeem et al. 2020,
https://arxiv.org/abs/2002.09797. Authenticity: Alaa et al. 2022, https://arxiv.org/abs/2102.08921.

Every error is that of other made sets as large against this very reference. A share of the made images is a mean of independent ones; a
share of the reference that they cover is not: it has that of `Cover.variance`, or where the spheres move with the made images the
jackknife's, from what the figure loses without each of them in turn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triptych.core.errors import DataError
from triptych.evaluation.feature_set import FeatureSet, Figure, SetMetricConfig
from triptych.evaluation.metric import share_error, standard_error
from triptych.evaluation.neighbours import Ball, Balls, Cover, Neighbourhood, Points, neighbourhood, radii, require_others

_SHOWN = 16
"""Nearest pairs that `copies` lists."""

Which = Callable[[SetMetricConfig], Ball]


def closed_ball(settings: SetMetricConfig) -> Ball:
    """That of precision and recall: "as near as" counts, as in guided-diffusion."""
    return Ball(settings.neighbours, closed=True)


def open_ball(settings: SetMetricConfig) -> Ball:
    """That of prdc: "nearer than" counts."""
    return Ball(settings.prdc_neighbours, closed=False)


def precision(which: Which) -> Callable[[FeatureSet, FeatureSet | None, SetMetricConfig], Figure]:
    """The share of the made images that lie in the sphere of an image of the reference."""
    return _of_balls(which, lambda balls, ball: _mean_of(balls.holding > 0))


def density(which: Which) -> Callable[[FeatureSet, FeatureSet | None, SetMetricConfig], Figure]:
    """In how many of the reference's spheres a made image lies, divided by k; about 1 for images of the reference's kind."""

    def figure(balls: Balls, ball: Ball) -> Figure:
        if not balls.holding.any():  # as certain as the share of those that lie in one
            found = _mean_of(balls.holding > 0)
            return Figure(0.0, None if found.error is None else found.error / ball.k)
        return _mean_of(balls.holding / ball.k)

    return _of_balls(which, figure)


def recall(which: Which) -> Callable[[FeatureSet, FeatureSet | None, SetMetricConfig], Figure]:
    """The share of the reference that lies in the sphere of a made image. The jackknife leaves the other spheres as they are."""
    return _of_balls(which, lambda balls, ball: _covered(balls.held, _jackknife(balls.held, len(balls.holding))), of_made=True)


def coverage(which: Which) -> Callable[[FeatureSet, FeatureSet | None, SetMetricConfig], Figure]:
    """The share of the reference whose own spheres hold a made image."""

    def figure(balls: Balls, ball: Ball) -> Figure:
        cover, made = balls.reached, len(balls.holding)
        variance = cover.variance(made)
        return _covered(cover, variance if variance > 0 else _jackknife(cover, made))

    return _of_balls(which, figure)


def authenticity(made: FeatureSet, reference: FeatureSet | None, settings: SetMetricConfig) -> Figure:
    """The share of the made images that are farther from their nearest image of the reference than that is from its own nearest."""
    assert reference is not None
    found = _compared(made, reference, settings)
    return _mean_of(found.squared > _radii(reference, settings, least=1)[found.nearest, 0])


def copies(made: FeatureSet, reference: FeatureSet | None, settings: SetMetricConfig) -> Figure:
    """The share of the made images that are as near to an image of the reference as its images hardly are to one another.

    As near as: at most the distance of which the share `copy_share` of the reference's images have another one within it; images that
    stand in it twice are left out of that. Of new images of the reference's kind as many are expected, and more are copies. Details:
    limit, that distance; expected, the share of the rest of the reference within it; twice, how many were left out; smallest, the
    distance of the nearest two of the reference; pairs, the nearest ones, with the numbers of the two images and the distance. Arrays, by
    made image: nearest (int64), the number of its nearest image of the reference, and distance.
    """
    assert reference is not None
    found = _compared(made, reference, settings)
    own = np.sqrt(_radii(reference, settings, least=1)[:, 0])
    single = own[own > 0]
    limit = np.quantile(single, settings.copy_share, method="inverted_cdf") if len(single) else 0.0
    distance = np.sqrt(found.squared)
    figure = _mean_of(distance <= limit)
    shown = np.argsort(distance, kind="stable")[:_SHOWN]
    details = {
        "limit": float(limit),
        "expected": float((single <= limit).mean() if len(single) else 0.0),
        "smallest": float(own.min()),
        "twice": int(len(own) - len(single)),
        "pairs": [{"made": int(i), "reference": int(found.nearest[i]), "distance": float(distance[i])} for i in shown],
    }
    return Figure(figure.value, figure.error, details, {"nearest": found.nearest, "distance": distance})


def _of_balls(
    which: Which, figure: Callable[[Balls, Ball], Figure], *, of_made: bool = False
) -> Callable[[FeatureSet, FeatureSet | None, SetMetricConfig], Figure]:
    """`of_made`: the spheres are those of the made images."""

    def measure(made: FeatureSet, reference: FeatureSet | None, settings: SetMetricConfig) -> Figure:
        assert reference is not None
        ball = which(settings)
        require_others(len((made if of_made else reference).array("features")), ball.k)
        found = figure(_compared(made, reference, settings).balls[ball], ball)
        return Figure(found.value, found.error, {"k": ball.k, "ties": "counted" if ball.closed else "not counted"})

    return measure


def _mean_of(values: np.ndarray) -> Figure:
    mean, count = float(values.mean()), len(values)
    if values.dtype == bool and mean in (0, 1) and count > 1:
        return Figure(mean, share_error(int(values.sum()), count))
    return Figure(mean, standard_error(values.astype(np.float64)))


def _covered(cover: Cover, variance: float | None) -> Figure:
    found, count = int(cover.covered.sum()), len(cover.covered)
    if variance is not None and found in (0, count):
        return Figure(found / count, share_error(found, count))
    return Figure(found / count, None if variance is None else variance**0.5)


def _jackknife(cover: Cover, made: int) -> float | None:
    """The variance of the share that is covered, by leaving out each made image in turn; None for a single one."""
    lost = cover.alone(made) / len(cover.covered)
    return None if made < 2 else float((made - 1) / made * np.square(lost - lost.mean()).sum())


def _compared(made: FeatureSet, reference: FeatureSet, settings: SetMetricConfig) -> Neighbourhood:
    """The comparison of the two sets, made once for all metrics."""
    balls = (closed_ball(settings), open_ball(settings))

    def compare() -> Neighbourhood:
        own, other = _points(made, reference), _points(reference, reference)
        return neighbourhood(own, other, radii(own, min(_most(settings), len(own) - 1)), _radii(reference, settings), balls)

    return made.kept(("neighbourhood", reference, balls), compare)


def _radii(reference: FeatureSet, settings: SetMetricConfig, *, least: int = 0) -> np.ndarray:
    """Of the reference, to as many others as any metric needs, or as there are. Raises DataError for fewer than `least`."""
    count = len(reference.array("features"))
    require_others(count, least)
    k = min(_most(settings), count - 1)
    return reference.kept(("radii", k), lambda: radii(_points(reference, reference), k))


def _most(settings: SetMetricConfig) -> int:
    return max(settings.neighbours, settings.prdc_neighbours)


def _points(features: FeatureSet, reference: FeatureSet) -> Points:
    """The set about the reference's mean."""
    rows, others = features.array("features"), reference.array("features")
    if rows.shape[1] != others.shape[1]:
        raise DataError(f"{rows.shape[1]} features against {others.shape[1]} of the reference: they are of different networks")
    return Points(rows, reference.kept("centre", lambda: others.mean(0, dtype=np.float64)))
