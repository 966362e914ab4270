"""The catalogue of set metrics, and from_features: the originals' values and an independent computation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from triptych.core.errors import ConfigError, DataError
from triptych.evaluation import from_features, inception_score
from triptych.evaluation.set_metric import SET_METRICS, FeatureSet, SetMetricConfig, find_set_metric

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED = Path(__file__).resolve().parents[3] / "shared" / "golden"


@pytest.fixture(scope="module")
def sets() -> tuple[np.ndarray, np.ndarray]:
    with np.load(GOLDEN / "metrics.npz") as arrays:
        return arrays["sample"], arrays["ref"]


def test_from_features_is_the_metrics_themselves(sets) -> None:
    made, reference = sets
    names = [name for name, metric in SET_METRICS.items() if metric.outputs == ("features",)]
    settings = SetMetricConfig(kid_subsets=3, kid_subset_size=40)
    found = from_features(made, reference, names, settings=settings)
    assert list(found) == names and {"frechet", "kid", "precision", "prdc-recall", "density", "coverage", "authenticity"} <= set(names)
    own, other = FeatureSet({"features": made}), FeatureSet({"features": reference})
    assert found == {name: SET_METRICS[name].measure(own, other, settings).value for name in names}
    assert from_features(made.tolist(), reference, "frechet, recall") == {
        "frechet": pytest.approx(found["frechet"], rel=1e-9),
        "recall": found["recall"],
    }


def test_given_subsets_of_kid(sets) -> None:
    """The formula of the originals, in plain NumPy."""
    made, reference = sets
    rng = np.random.default_rng(0)
    index = np.stack([rng.permutation(250)[:60] for _ in range(5)]), np.stack([rng.permutation(300)[:60] for _ in range(5)])
    each = []
    for own, other in zip(*index, strict=True):
        xx, yy, xy = (
            (np.einsum("id,jd->ij", a.astype(np.float64), b.astype(np.float64)) / 64 + 1) ** 3
            for a, b in ((made[own], made[own]), (reference[other], reference[other]), (made[own], reference[other]))
        )
        each.append((xx.sum() - np.trace(xx) + yy.sum() - np.trace(yy)) / (60 * 59) - 2 * xy.mean())
    assert from_features(made, reference, ["kid"], subset_index=index)["kid"] == pytest.approx(np.mean(each), rel=1e-12)


def test_whole_numbers(sets) -> None:
    small = [[0, 0], [0, 1], [1, 0], [1, 1], [2, 2], [3, 1], [4, 4]]
    assert from_features(small, small, ["precision"]) == {"precision": 1.0}


@pytest.mark.parametrize(
    ("metrics", "index", "said"),
    [
        (["fréchet"], None, 'metrics: unknown metric "fréchet"; did you mean "frechet"?'),
        (["is"], None, 'metrics: "is" needs other outputs of a network than features'),
        (["kid"], ([[0, 1]], [[0, 300]]), "subset_index: expected numbers of images from 0 to 299"),
        (["kid"], ([[0, -1]], [[0, 3]]), "subset_index: expected numbers of images from 0 to 249"),
        (["kid"], ([[0, 1]], [[0.0, 0.5]]), "subset_index: expected numbers of images"),
        (["kid"], ([0, 1], [0, 1]), r"subset_index: got numbers of shapes \(2,\) and \(2,\)"),
        (["kid"], ([[0]], [[1]]), "subset_index: got numbers of shapes"),
        (["kid"], ([[0, 1]], [[0, 1], [2, 3]]), "subset_index: got numbers of shapes"),
    ],
)
def test_what_from_features_refuses(sets, metrics, index, said) -> None:
    with pytest.raises(ConfigError, match=said):
        from_features(*sets, metrics, subset_index=index)


def test_arrays_that_are_no_features(sets) -> None:
    for wrong in (np.zeros(3), np.zeros((3, 2), dtype=complex), [["a"]], np.zeros((2, 3, 4)), np.zeros((0, 64)), np.zeros((3, 0))):
        with pytest.raises(ConfigError, match="^made: got an array of"):
            from_features(wrong, sets[1], ["frechet"])
    for image in (0, 11, 299):
        infinite = sets[1].copy()
        infinite[image, 3] = np.inf
        with pytest.raises(DataError, match=f'^image {image} has "features" that are not finite'):
            from_features(sets[0], infinite, ["precision"])


def test_what_the_catalogue_says_is_true(sets) -> None:
    """Each metric works with just the outputs and the kind of reference that it names."""
    rng = np.random.default_rng(0)
    arrays = {"features": sets[0], "spatial": sets[0][:, :9], "logits": rng.standard_normal((250, 6))}
    others = {"features": sets[1], "spatial": sets[1][:, :9]}
    for name, metric in SET_METRICS.items():
        assert find_set_metric(name) is metric and metric.summary
        made = FeatureSet({output: arrays[output] for output in metric.outputs})
        reference = {
            "none": lambda: None,
            "moments": lambda m=metric: FeatureSet(moments={o: FeatureSet(others).moments(o) for o in m.outputs}),
            "features": lambda m=metric: FeatureSet({o: others[o] for o in m.outputs}),
        }[metric.reference]()
        figure = metric.measure(made, reference, SetMetricConfig(kid_subsets=3, kid_subset_size=50))
        assert np.isfinite(figure.value) and figure.error is not None and figure.error > 0, name
        json.dumps(dict(figure.details))


def test_a_set_of_features() -> None:
    rows = np.arange(12.0).reshape(4, 3) ** 2
    given = FeatureSet({"features": rows})
    assert len(given) == 4 and len(FeatureSet()) == 0
    assert given.moments("features") is given.moments("features")
    known = FeatureSet(moments={"features": given.moments("features")})
    assert len(known) == 4 and known.moments("features").count == 4
    with pytest.raises(DataError, match='no "spatial" of each image'):
        given.moments("spatial")
    with pytest.raises(ConfigError, match='unknown metric "precison"; did you mean "precision"'):
        find_set_metric("precison")


@pytest.mark.real_data(RECORDED)
def test_all_recorded_values() -> None:
    """Those of the originals on all of their arrays."""
    recorded = json.loads((RECORDED / "metrics.json").read_text())
    with np.load(RECORDED / "metrics.npz") as arrays:
        given = dict(arrays)
    made, reference = given["sample"], given["ref"]
    found = from_features(
        made,
        reference,
        "frechet,precision,recall,prdc-precision,prdc-recall,density,coverage,authenticity,kid",
        subset_index=(given["kid_sample_index"], given["kid_ref_index"]),
    )
    turned = from_features(
        made,
        reference,
        "precision,recall,prdc-precision,prdc-recall,density,coverage",
        settings=SetMetricConfig(neighbours=5, prdc_neighbours=3),
    )
    for original in ("pytorch-fid", "dgm-eval", "dgm-eval-efficient"):
        assert found["frechet"] == pytest.approx(recorded[f"fid/{original}"], rel=1e-9)
    assert found["frechet"] == pytest.approx(recorded["fid/guided-diffusion"], rel=1e-5)
    assert found["kid"] == pytest.approx(recorded["kid/clean-fid/fixed subsets"], rel=1e-9)
    for values, closed, opened in ((found, 3, 5), (turned, 5, 3)):
        for name in ("precision", "recall"):
            assert values[name] == pytest.approx(recorded[f"{name}/guided-diffusion-float32/k={closed}"], abs=1e-9)
            assert values[name] == pytest.approx(recorded[f"{name}/torch-fidelity-float64/k={closed}"], abs=1e-6)
            assert values[f"prdc-{name}"] == pytest.approx(recorded[f"{name}/dgm-eval/k={opened}"], abs=1e-9)
        for name in ("density", "coverage"):
            assert values[name] == pytest.approx(recorded[f"{name}/dgm-eval/k={opened}"], abs=1e-9)
    assert found["authenticity"] == pytest.approx(recorded["authpct/dgm-eval"] / 100, abs=1e-6)
    spatial = [FeatureSet({"spatial": given[f"spatial_{name}"].reshape(len(given[name]), -1)}) for name in ("sample", "ref")]
    sfid = SET_METRICS["sfid"].measure(spatial[0], spatial[1], SetMetricConfig()).value
    assert sfid == pytest.approx(recorded["sfid/guided-diffusion"], rel=1e-5)
    assert inception_score(given["logits"], 10) == pytest.approx(recorded["is/dgm-eval/splits=10,unshuffled/mean"], rel=1e-9)
    whole = np.arange(1800)[None]
    one = from_features(made, reference, ["kid"], subset_index=(whole, whole))["kid"]
    assert one == pytest.approx(recorded["kid/torch-fidelity/one subset of all"], rel=1e-9)
    rng = np.random.RandomState(2020)
    drawn = [[rng.choice(len(rows), 1000, replace=False) for rows in (made, reference)] for _ in range(100)]
    random = from_features(made, reference, ["kid"], subset_index=([own for own, _ in drawn], [other for _, other in drawn]))["kid"]
    assert random == pytest.approx(recorded["kid/torch-fidelity/subsets=100x1000,seed=2020,float32/mean"], rel=1e-4)
