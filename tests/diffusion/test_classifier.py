from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triptych.cli.main import main
from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Sampler, seeded_build
from triptych.core.rng import Rng
from triptych.diffusion.classifier import ClassifierConfig, NoisyClassifier, accuracies
from triptych.diffusion.gaussian import NoiseConfig
from triptych.diffusion.guidance import same_noise
from triptych.diffusion.pooling import AttentionPool, Pool
from triptych.diffusion.unet import EncoderConfig
from triptych.engine.metric_log import read_metrics
from triptych.recipes.classifiers import classifier_digits
from triptych.recipes.config import RunConfig
from triptych.recipes.diffusion import adm_digits
from triptych.runs import open_run, train

SPEC = DataSpec(image_size=8, channels=1, num_classes=7)
NETWORK = EncoderConfig(
    num_channels=32,
    num_res_blocks=1,
    channel_mult=(1, 2),
    attention_resolutions=(4,),
    num_head_channels=16,
    resblock_updown=True,
    dropout=0.2,
)
POOLS: tuple[Pool, ...] = ("attention", "adaptive", "spatial", "spatial_v2")


def config(**settings: Any) -> ClassifierConfig:
    return ClassifierConfig(**({"network": NETWORK, "noise": NoiseConfig(steps=100, schedule="cosine")} | settings))


def model(**settings: Any) -> NoisyClassifier:
    made = seeded_build(config(**settings), SPEC, seed=0)
    assert isinstance(made, NoisyClassifier)
    torch.manual_seed(0)
    for parameter in made.network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.05)
    return made


def batch(count: int = 6) -> tuple[Batch, Rng]:
    generator = torch.Generator().manual_seed(5)
    index = torch.arange(1000, 1000 + count)
    images = torch.rand(count, 1, 8, 8, generator=generator) * 2 - 1
    return Batch(images, torch.randint(0, 7, (count,), generator=generator), index), Rng(0, ("classify", 0), index)


# The network.


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("pool", POOLS)
def test_logits(pool: Pool) -> None:
    made, (images, rng) = model(pool=pool), batch()
    t = torch.arange(6) * 10
    logits = made.eval().network(images.images, t)
    assert logits.shape == (6, 7) and logits.dtype == images.images.dtype
    torch.testing.assert_close(made.network(images.images[2:3], t[2:3]), logits[2:3], atol=1e-5, rtol=0)
    assert not torch.allclose(made.network(images.images, t + 30), logits, atol=1e-4)  # the timestep matters
    made.train()
    assert not torch.allclose(made.network(images.images, t, rng), logits, atol=1e-4)  # dropout
    torch.testing.assert_close(made.network(images.images, t, rng)[3:], made.network(images.images[3:], t[3:], rng[3:]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pool", POOLS)
def test_half_precision(pool: Pool) -> None:
    made, (images, _) = model(pool=pool).eval(), batch()
    t = torch.arange(6) * 10
    exact = made.network(images.images, t).detach()
    heard: list[torch.dtype] = []
    for layer in made.network.out.modules():
        if isinstance(layer, nn.Linear | AttentionPool):
            layer.register_forward_hook(lambda module, given, output: heard.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = made.network(images.images, t).detach()
    assert logits.dtype == torch.float32 and set(heard) <= {torch.float32}
    assert 0 < float((logits - exact).abs().max()) < 0.05 * float(exact.std()) + 0.02


def test_attention_pool_by_hand() -> None:
    torch.manual_seed(0)
    pool = AttentionPool(8, size=3, head_channels=4, out_channels=5)
    assert pool.qkv_proj.bias is not None and pool.c_proj.bias is not None
    x = torch.randn(2, 8, 3, 3)
    tokens = torch.cat((x.mean((2, 3))[:, None], x.flatten(2).transpose(1, 2)), dim=1) + pool.positional_embedding.T
    qkv = tokens @ pool.qkv_proj.weight[:, :, 0].T + pool.qkv_proj.bias
    mixed = []
    for head in range(2):
        q, k, v = (qkv[:, :, 8 * j + 4 * head : 8 * j + 4 * head + 4] for j in range(3))
        mixed.append(torch.softmax(q @ k.transpose(1, 2) / 2, dim=-1) @ v)
    expected = torch.cat(mixed, dim=-1) @ pool.c_proj.weight[:, :, 0].T + pool.c_proj.bias
    torch.testing.assert_close(pool(x), expected[:, 0])


def test_initial_weights() -> None:
    fresh = seeded_build(config(network=replace(NETWORK, num_channels=128)), SPEC, seed=0)
    embedding = fresh.state_dict()["network.out.2.positional_embedding"]
    assert embedding.shape == (256, 17)
    assert float(embedding.std()) == pytest.approx(256**-0.5, rel=0.05)
    adaptive = seeded_build(config(pool="adaptive"), SPEC, seed=0)
    assert isinstance(adaptive, NoisyClassifier)
    assert not adaptive.network(torch.randn(2, 1, 8, 8), torch.tensor([1, 2]), Rng(0, (), torch.arange(2))).any()


@pytest.mark.parametrize("pool", POOLS)
def test_gradient_of_the_images_by_differences(pool: Pool) -> None:
    made, (images, _) = model(pool=pool).eval(), batch()
    c = made.process.at(torch.arange(6) * 10)
    labels = images.labels
    assert labels is not None

    def log_p(x: Tensor) -> Tensor:
        return made.classify(x, c).log_softmax(-1).gather(1, labels[:, None]).double().sum()

    x = images.images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(log_p(x), x)
    step = 1e-2 * gradient / gradient.square().mean().sqrt()  # along the gradient, where the change is largest
    with torch.no_grad():
        change = log_p(images.images + step) - log_p(images.images - step)
    torch.testing.assert_close(change, 2 * (gradient * step).double().sum(), rtol=1e-2, atol=0)


@pytest.mark.usefixtures("float64")
def test_recomputed_activations_give_the_same_gradients() -> None:
    images, rng = batch()
    gradients = []
    for checkpoint in (False, True):
        made = model(network=replace(NETWORK, checkpoint=checkpoint)).train()
        made.loss(made.phases[0], images, rng).loss.sum().backward()
        gradients.append([p.grad for p in made.network.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


# The loss.


def test_terms() -> None:
    made, (images, rng) = model(), batch()
    terms = made.loss(made.phases[0], images, rng)
    assert terms.loss.shape == (6,) and terms.loss.requires_grad
    assert set(terms.logged) == {"accuracy@1", "accuracy@5"} and not any(v.requires_grad for v in terms.logged.values())
    t, weight = made.timesteps.draw(rng)
    assert terms.group is not None and terms.group.tolist() == [step * 4 // 100 for step in t.tolist()]
    assert not terms.observed and torch.equal(weight, torch.ones(6))
    x_t = made.process.noised(images.images, rng.normal("noise", 1, 8, 8), made.process.at(t))
    assert images.labels is not None
    expected = -made.network(x_t, t, rng).log_softmax(-1)[torch.arange(6), images.labels]
    torch.testing.assert_close(terms.loss, expected)


def test_clean_images() -> None:
    made, (images, rng) = model(noised=False).eval(), batch()
    terms = made.loss(made.phases[0], images, rng)
    assert terms.group is None and images.labels is not None
    logits = made.network(images.images, torch.zeros(6, dtype=torch.int64))
    torch.testing.assert_close(terms.loss, -logits.log_softmax(-1)[torch.arange(6), images.labels])
    assert not torch.allclose(terms.loss, model().eval().loss(made.phases[0], images, rng).loss, atol=1e-3)


def test_rescaled_timesteps_reach_the_network() -> None:
    made, (images, rng) = model(noise=NoiseConfig(steps=100, schedule="cosine", rescale_timesteps=True)).eval(), batch()
    t, _ = made.timesteps.draw(rng)
    c = made.process.at(t)
    x_t = made.process.noised(images.images, rng.normal("noise", 1, 8, 8), c)
    torch.testing.assert_close(made.classify(x_t, c), made.network(x_t, 10 * t))
    assert images.labels is not None
    expected = -made.network(x_t, 10 * t).log_softmax(-1)[torch.arange(6), images.labels]
    torch.testing.assert_close(made.loss(made.phases[0], images, rng).loss, expected)


def test_accuracies_by_hand() -> None:
    logits = torch.tensor([[9.0, 8, 7, 6, 5, 4, 3], [3, 4, 5, 6, 7, 8, 9], [0, 9, 0.5, 8, 1, 7, 2], [0, 9, 0.5, 8, 1, 7, 2]])
    found = accuracies(logits, torch.tensor([0, 1, 2, 4]))
    assert found["accuracy@1"].tolist() == [1, 0, 0, 0]
    assert found["accuracy@5"].tolist() == [1, 0, 0, 1]
    assert accuracies(torch.zeros(7, 7), torch.arange(7))["accuracy@1"].sum() == 1  # no opinion is right once in seven times
    assert set(accuracies(logits[:, :5], torch.tensor([0, 1, 2, 4]))) == {"accuracy@1"}
    assert set(accuracies(logits[:, :6], torch.tensor([0, 1, 2, 4]))) == {"accuracy@1", "accuracy@5"}


def test_expected_weighted_loss_is_the_mean_over_timesteps() -> None:
    """Exactly, over the sampler's own probabilities, and not by drawing often."""
    made, (images, _) = model(timestep_sampler="loss-second-moment", noise=NoiseConfig(steps=4, schedule="cosine")), batch(1)
    for repetition in range(10):
        made.timesteps.observe({"t": torch.arange(4), "loss": torch.tensor([1.0, 2, 3, 4]) + repetition})  # type: ignore[operator]
    p = made.timesteps.probabilities().tolist()  # type: ignore[operator]
    assert p[3] / p[0] > 1.4
    expectation, plain = 0.0, []
    for t in range(4):
        rng = next(rng for rng in (Rng(s, (), images.index) for s in range(1000)) if int(made.timesteps.draw(rng)[0]) == t)
        terms = made.loss(made.phases[0], images, rng)
        assert terms.observed["t"].tolist() == [t]
        expectation += p[t] * float(terms.loss.detach())
        plain.append(float(terms.observed["loss"]))
        assert float(terms.logged["accuracy@1"]) in (0.0, 1.0)  # a share of what was seen, without weight
    assert expectation == pytest.approx(sum(plain) / 4, rel=1e-5)
    assert len({round(loss, 4) for loss in plain}) == 4


def test_loss_aware_timesteps() -> None:
    made = model(timestep_sampler="loss-second-moment", noise=NoiseConfig(steps=4, schedule="cosine"))
    images, rng = batch()
    for i in range(60):
        made.observe(made.phases[0], made.loss(made.phases[0], images, rng.child(i)).observed)
    assert (made.timesteps.count >= 10).all()  # type: ignore[operator]
    made.eval()
    terms = made.loss(made.phases[0], images, rng)
    assert not terms.observed
    uniform = model(noise=NoiseConfig(steps=4, schedule="cosine")).eval()
    torch.testing.assert_close(terms.loss, uniform.loss(uniform.phases[0], images, rng).loss)  # evaluation is uniform


# Configuration.


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="a classifier learns classes, but the data has no labels"):
        config().build(DataSpec(image_size=8, channels=1))
    with pytest.raises(ConfigError, match="at least two classes, but the data has 1"):
        config().build(DataSpec(image_size=8, channels=1, num_classes=1))
    with pytest.raises(ConfigError, match=r"network\.num_head_channels: got 48, expected a divisor of 64"):
        config(network=replace(NETWORK, num_head_channels=48)).build(SPEC)
    without = replace(NETWORK, num_head_channels=None)
    with pytest.raises(ConfigError, match=r"network\.num_head_channels: got None, expected a divisor of 64.*another pool"):
        config(network=without).build(SPEC)
    assert config(network=without, pool="adaptive").build(SPEC).num_classes == 7
    with pytest.raises(ConfigError, match="timestep_sampler: got 'loss-second-moment', expected 'uniform' where noised is false"):
        config(noised=False, timestep_sampler="loss-second-moment")
    with pytest.raises(ConfigError, match=r"network\.channel_mult: got 1, 2 for images of 9 pixels"):
        config().build(DataSpec(image_size=9, channels=1, num_classes=7))


def test_it_is_no_sampler_and_fits_the_digits() -> None:
    assert not isinstance(model(), Sampler)
    classifier, generator = classifier_digits(), adm_digits()
    assert same_noise(classifier.model.noise, generator.model.diffusion)  # type: ignore[attr-defined]
    assert (classifier.data.source, classifier.data.image_size) == (generator.data.source, generator.data.image_size)
    assert not classifier.data.flip


# Training.


def small_run(**train_settings: Any) -> RunConfig:
    settings = {"total_images": 1_920, "batch_size": 32, "ema_rates": (), "checkpoint_every": None, "validate_images": 64} | train_settings
    changes = {
        "model": {"network": {"channel_mult": (1, 1), "attention_resolutions": (4,), "dropout": 0.0}, "noised": False},
        "data": {"image_size": 8, "workers": 0},
        "train": settings,
        "optim": {"learning_rate": 3e-3, "warmup_images": 0},
        "log": {"every": 320},
    }
    return classifier_digits().updated(changes)


def test_it_learns_without_averages(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(small_run(), tmp_path / "run", device="cpu")
    lines = read_metrics(tmp_path / "run/metrics.jsonl")
    accuracy = [line["classify/accuracy@1"] for line in lines if "classify/accuracy@1" in line]
    assert accuracy[0] < 0.6 and accuracy[-1] > 0.8
    assert lines[-1]["validation/classify/accuracy@1"] > 0.8
    made = run.load(device="cpu")
    assert isinstance(made, NoisyClassifier) and not made.training
    assert run.tensors().keys() == made.state_dict().keys()
    files = {path.name for path in (tmp_path / "run/checkpoints/000001920").glob("*.safetensors")}
    assert files == {"model.safetensors", "optimizer.safetensors"}
    assert open_run(tmp_path / "run").find_checkpoint("best") == 1_920
    capsys.readouterr()
    assert main(["sample", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr()
    lead = f"it leads others: triptych sample RUN --guide {tmp_path / 'run'}"
    assert shown.err == f"triptych: error: {tmp_path / 'run'}: a Classifier draws no samples; {lead}\n" and not shown.out


def test_quartiles_reach_the_log(tmp_path: Any) -> None:
    config = small_run(total_images=64).updated({"model": {"noised": True}})
    train(config, tmp_path / "run", device="cpu")
    names = {name for line in read_metrics(tmp_path / "run/metrics.jsonl") for name in line}
    for term in ("loss", "accuracy@1", "accuracy@5"):
        for suffix in ("", "_q0", "_q1", "_q2", "_q3"):
            assert {f"classify/{term}{suffix}", f"validation/classify/{term}{suffix}"} <= names
