"""Imported runs sample, train and resume like others; exported ones are what the other program loads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.diffusion import recorded
from tests.interop import checkpoint as written
from tests.interop.networks import CLASSIFIER, DIFFUSION, UPSAMPLER, classifier_weights, diffusion_weights, upsampler_weights
from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError, DataError
from triptych.core.weight_files import read_weights
from triptych.data.config import DataConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import NoisyClassifier
from triptych.diffusion.super_resolution import SuperResolution
from triptych.engine.checkpoint import list_checkpoints
from triptych.flows.glow import Glow, GlowConfig
from triptych.interop import glow, tensor_bundle
from triptych.interop.guided_diffusion import published
from triptych.interop.guided_diffusion.published import Published
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import Run, export_run, import_run, open_run, train

WORDS = (
    "--image_size 16 --num_channels 32 --num_res_blocks 1 --channel_mult 1,2 --attention_resolutions 8 --num_heads 2 "
    "--resblock_updown True --learn_sigma True --class_cond True --noise_schedule cosine --timestep_respacing 3"
)


def saved(path: Path, weights: dict[str, Any]) -> Path:
    torch.save(weights, path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small network that knows ten classes."""
    return saved(tmp_path / "model.pt", diffusion_weights(classes=10))


@pytest.fixture
def run(file: Path, tmp_path: Path) -> Run:
    return import_run(file, tmp_path / "run", flags=WORDS)


def on_digits(run: Run, total: int) -> RunConfig:
    """Six digits a step, from the run's weights."""
    config = run.config.updated(
        {
            "train": {"total_images": total, "batch_size": 6, "ema_rates": (0.9,), "checkpoint_every": None, "sample_every": None},
            "optim": {"learning_rate": 1e-3},
        }
    )
    data = DataConfig(source="digits", image_size=16, channels=3, workers=0, validation_fraction=0.0)
    return dataclasses.replace(config, data=data, train=dataclasses.replace(config.train, sample_count=0, validate_every=None))


def test_what_a_run_holds(run: Run, file: Path) -> None:
    assert isinstance(run.config.model, ADMConfig) and run.config.model.sampling.steps == 3 and run.recipe is None
    assert run.spec == DataSpec(image_size=16, channels=3, num_classes=10)
    assert (run.config.data.image_size, run.config.data.labels, run.config.train.ema_rates) == (16, "auto", (0.9999,))
    assert not run.config.train.ema_warmup, "an imported average goes on at its rate"
    checkpoint = run.directory / "checkpoints/000000000"
    assert {path.name for path in checkpoint.iterdir()} == {"model.safetensors", "state.json"}, "stored once"
    origin = json.loads((checkpoint / "state.json").read_text())["imported"]
    assert origin["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (origin["program"], origin["file"], origin["averages"]) == ("guided-diffusion", "model.pt", [])
    assert "--num_channels 32" in origin["flags"] and "--rescale_timesteps False" in origin["flags"]
    assert origin["sha256"] in (run.directory / "log.txt").read_text()
    weights, tensors = diffusion_weights(classes=10), run.tensors()
    assert tensors.keys() == {f"network.{name}" for name in weights}
    assert all(torch.equal(tensors[f"network.{name}"], tensor) for name, tensor in weights.items())


def test_it_samples(run: Run) -> None:
    images = run.sample(4, seed=1, labels=[3, 7], device="cpu").images
    assert images.shape == (4, 16, 16, 3) and images.std() > 0
    raw = run.sample(4, seed=1, labels=[3, 7], device="cpu", weights="raw", checkpoint="0").images
    assert (raw == images).all(), "the only weights that there are"
    with pytest.raises(ConfigError, match='weights: got "ema-0.9999", expected one of raw$'):
        run.sample(1, device="cpu", weights="ema-0.9999")
    with pytest.raises(CheckpointError, match="has no best checkpoint"):
        run.load(checkpoint="best", device="cpu")


@pytest.mark.slow
def test_it_trains_and_resumes(run: Run, file: Path, tmp_path: Path) -> None:
    train(on_digits(run, 6), run.directory, device="cpu")
    log = (run.directory / "log.txt").read_text()
    assert "imported without an optimizer's state: the optimizer starts anew" in log
    assert "the average of rate 0.9 starts at the imported weights" in log
    trained = open_run(run.directory)
    assert trained.checkpoints()[-1] == 6 and trained.spec.class_names is not None
    before, after, average = (trained.tensors(checkpoint=c, weights=w) for c, w in (("0", "raw"), ("6", "raw"), ("6", None)))
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(moved) > len(before) / 2
    name = "network.out.2.bias"
    torch.testing.assert_close(average[name], 0.9 * before[name] + 0.1 * after[name])
    train(on_digits(trained, 18), run.directory, device="cpu")
    other = import_run(file, tmp_path / "other", flags=WORDS)
    train(on_digits(other, 18), other.directory, device="cpu")
    resumed, whole = (open_run(path).tensors(weights="raw") for path in (run.directory, other.directory))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole), "bit for bit"


def test_until_it_is_trained_only_the_model_is_settled(run: Run) -> None:
    changed = on_digits(run, 6).updated({"model": {"network": {"num_channels": 64}}})
    with pytest.raises(ConfigError, match=r"model\.network\.num_channels: got 64, but the run"):
        train(changed, run.directory, device="cpu")
    train(on_digits(run, 6), run.directory, device="cpu")
    with pytest.raises(ConfigError, match=r"data\.flip: got False, but the run"):
        train(on_digits(open_run(run.directory), 12).updated({"data": {"flip": False}}), run.directory, device="cpu")


def test_other_images_are_refused(run: Run) -> None:
    config = on_digits(run, 6)
    with pytest.raises(
        ConfigError, match=r"^data: the images are not those of this run \(channels 1 in place of 3\); give its own, or begin another run"
    ):
        train(config.updated({"data": {"channels": 1}}), run.directory, device="cpu")


def test_a_damaged_newer_checkpoint(run: Run) -> None:
    train(on_digits(run, 6), run.directory, device="cpu")
    (run.directory / "checkpoints/000000006/ema-0.9.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="the one before it is used"):
        tensors = open_run(run.directory).tensors()
    assert all(torch.equal(tensors[f"network.{name}"], tensor) for name, tensor in diffusion_weights(classes=10).items())


@pytest.mark.slow
def test_weights_with_their_average(file: Path, tmp_path: Path) -> None:
    average = {name: tensor + 1 for name, tensor in diffusion_weights(classes=10).items()}
    ema = saved(tmp_path / "ema_0.999_500000.pt", average)
    run = import_run(file, tmp_path / "run", flags=WORDS, ema=ema)
    assert run.config.train.ema_rates == (0.999,)
    raw, used = run.tensors(weights="raw"), run.tensors()
    assert all(torch.equal(used[name], raw[name] + 1) for name in raw)
    train(dataclasses.replace(on_digits(run, 6), train=dataclasses.replace(on_digits(run, 6).train, ema_rates=(0.999,))), run.directory)
    assert "of rate 0.999 starts at" not in (run.directory / "log.txt").read_text()
    with pytest.raises(ConfigError, match="ema: got 'model.pt', expected a name such as ema_0.9999_500000.pt"):
        import_run(file, tmp_path / "again", flags=WORDS, ema=file)
    wrong = saved(tmp_path / "ema_0.9_1.pt", diffusion_weights(classes=5))
    with pytest.raises(CheckpointError, match=r"ema_0\.9_1\.pt: label_emb\.weight has shape \[5, 128\], expected \[10, 128\]"):
        import_run(file, tmp_path / "again", flags=WORDS, ema=wrong)


@pytest.mark.slow
def test_an_imported_average_goes_on_at_its_rate(file: Path, tmp_path: Path) -> None:
    """Weights that stay where they are: of what the average is apart from them 0.9999^30 is left after 30 steps."""
    ema = saved(tmp_path / "ema_0.9999_500000.pt", {name: tensor + 1 for name, tensor in diffusion_weights(classes=10).items()})
    run = import_run(file, tmp_path / "run", flags=WORDS, ema=ema)
    config = on_digits(run, 30).updated({"train": {"ema_rates": (0.9999,), "batch_size": 1}, "optim": {"learning_rate": 1e-20}})
    train(config, run.directory, device="cpu")
    trained = open_run(run.directory)
    raw, average = trained.tensors(weights="raw"), trained.tensors()
    for name in raw:
        torch.testing.assert_close(average[name], raw[name] + 0.9999**30, rtol=0, atol=1e-5)


def test_a_classifier_and_an_upsampler(tmp_path: Path) -> None:
    classifier = import_run(saved(tmp_path / "c.pt", classifier_weights(classes=10)), tmp_path / "c", flags=CLASSIFIER)
    assert isinstance(classifier.load(device="cpu"), NoisyClassifier)
    assert (classifier.config.optim.learning_rate, classifier.config.data.crop) == (3e-4, "random")
    upsampler = import_run(saved(tmp_path / "u.pt", upsampler_weights()), tmp_path / "u", flags=UPSAMPLER)
    assert isinstance(upsampler.load(device="cpu"), SuperResolution)
    half = import_run(
        saved(tmp_path / "h.pt", diffusion_weights(classes=None)),
        tmp_path / "h",
        flags={**DIFFUSION, "class_cond": False, "use_fp16": True},
    )
    assert half.config.train.precision == "bf16" and half.config.data.labels == "none" and half.spec.num_classes is None


def test_published_files_have_the_settings_of_their_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the large networks out of the way: a small one takes their place in the table."""
    flags = {**DIFFUSION, "use_kl": True, "class_cond": False, "timestep_respacing": "2"}
    monkeypatch.setattr(published, "PUBLISHED", (Published("tiny.pt", "guided-diffusion", "diffusion", flags, "adm-cifar10-vlb"),))
    weights = diffusion_weights(classes=None)
    for name, line in (("tiny.pt", "is the published tiny.pt"), ("renamed.pt", "is the published tiny.pt, by its shapes")):
        said: list[str] = []
        run = import_run(saved(tmp_path / name, weights), tmp_path / name.removesuffix(".pt"), report=said.append)
        assert said == [f"{tmp_path / name} {line}"]
        recipe = load_recipe("adm-cifar10-vlb")
        assert run.recipe == "adm-cifar10-vlb"
        going_on = dataclasses.replace(recipe.train, ema_warmup=False)
        assert (run.config.train, run.config.optim, run.config.data) == (going_on, recipe.optim, recipe.data)
        assert isinstance(run.config.model, ADMConfig) and run.config.model.timestep_sampler == "loss-second-moment"
        assert run.config.model.sampling.steps == 2
        assert not run.tensors()["timesteps.count"].any(), "no losses were seen yet"
    state = json.loads((tmp_path / "renamed/checkpoints/000000000/state.json").read_text())
    assert state["imported"]["published"] == "tiny.pt"


def test_improved_diffusion(tmp_path: Path) -> None:
    shape = {"channel_mult": (1, 2, 2, 2), "attention_resolutions": (16,), "resblock_updown": False}
    file = saved(tmp_path / "m.pt", diffusion_weights(outputs=3, classes=None, size=32, **shape))
    words = "--image_size 32 --num_channels 32 --num_res_blocks 1 --attention_resolutions 16 --num_heads 2 --sigma_small true"
    run = import_run(file, tmp_path / "run", flags=words, program="improved-diffusion")
    assert isinstance(run.config.model, ADMConfig)
    diffusion = run.config.model.diffusion
    assert (diffusion.variance, diffusion.rescale_timesteps, diffusion.loss) == ("fixed_small", True, "rescaled_mse")


def test_imports_that_are_refused(file: Path, run: Run, tmp_path: Path) -> None:
    new = tmp_path / "new"
    with pytest.raises(CheckpointError, match="run holds a run already; choose another directory"):
        import_run(file, run.directory, flags=WORDS)
    with pytest.raises(ConfigError, match=r"--flags: missing, for .*model\.pt is not a published file: .*say --num_channels 32 "):
        import_run(file, new)
    with pytest.raises(ConfigError, match="^--num_channels: the file has 32, got 64$"):
        import_run(file, new, flags=WORDS.replace("num_channels 32", "num_channels 64"))
    with pytest.raises(CheckpointError, match="there is no file"):
        import_run(tmp_path / "none.pt", new, flags=WORDS)
    with pytest.raises(CheckpointError, match=r"other\.pt: these are not the weights of a network of guided-diffusion"):
        import_run(saved(tmp_path / "other.pt", {"weight": torch.ones(1)}), new)
    with pytest.raises(
        ConfigError,
        match="program: got 'guided', expected guided-diffusion, improved-diffusion, glow, imaginaire, nvidia, diffusers, sit or dit",
    ):
        import_run(file, new, flags=WORDS, program="guided")  # type: ignore[arg-type]
    assert not new.exists()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/thesis.txt").write_text("")
    with pytest.raises(CheckpointError, match=r"is not a run: it has no config\.json but holds thesis\.txt"):
        import_run(file, tmp_path / "notes", flags=WORDS)


def test_export_and_import(run: Run, tmp_path: Path) -> None:
    done = export_run(run.directory, "guided-diffusion", tmp_path / "out/back.pt")
    assert done.paths == (tmp_path / "out/back.pt", tmp_path / "out/back.flags.txt")
    assert done.paths[1].read_text() == f"{done.flags}\n"
    assert any("NUM_CLASSES" in note for note in done.notes) and any("--timestep_respacing 3" in note for note in done.notes)
    weights = read_weights(done.paths[0])
    assert all(torch.equal(weights[name], tensor) for name, tensor in diffusion_weights(classes=10).items())
    back = import_run(done.paths[0], tmp_path / "back", flags=done.flags)
    model, original = back.config.model, run.config.model
    assert isinstance(model, ADMConfig) and isinstance(original, ADMConfig)
    assert dataclasses.replace(model, sampling=original.sampling) == original and back.spec == run.spec


def test_a_licence_stays_with_the_weights(run: Run, tmp_path: Path) -> None:
    licence, config = "CC BY-NC-SA 4.0", on_digits(run, 6)
    place = run.directory / "config.json"
    assert run.licence == "" and "licence" not in json.loads(place.read_text())
    place.write_text(json.dumps(json.loads(place.read_text()) | {"licence": licence}))
    assert train(config, run.directory, device="cpu").licence == licence
    done = export_run(run.directory, "guided-diffusion", tmp_path / "out.pt")
    assert done.notes[-1] == f"licence of the published weights that the run began with: {licence}"
    other = train(config, tmp_path / "other", init_from=run.directory, device="cpu")
    assert other.licence == licence
    assert f"init-from: licence of the published weights that the run began with: {licence}" in (tmp_path / "other/log.txt").read_text()
    assert train(config.updated({"train": {"total_images": 12}}), other.directory, device="cpu").licence == licence
    place.write_text(json.dumps(json.loads(place.read_text()) | {"licence": 1}))
    with pytest.raises(CheckpointError, match=r"licence: expected the licence of published weights"):
        open_run(run.directory)


@pytest.mark.slow
def test_export_of_chosen_weights(run: Run, tmp_path: Path) -> None:
    train(on_digits(run, 12), run.directory, device="cpu")
    trained = open_run(run.directory)
    for number, (checkpoint, weights) in enumerate((("0", None), ("latest", None), ("latest", "raw"))):
        done = export_run(run.directory, "guided-diffusion", tmp_path / f"{number}.pt", checkpoint=checkpoint, weights=weights)
        wanted = trained.tensors(checkpoint=checkpoint, weights=weights)["network.out.2.weight"]
        assert torch.equal(read_weights(done.paths[0])["out.2.weight"], wanted)


def test_export_to_diffusers(run: Run, tmp_path: Path) -> None:
    done = export_run(run.directory, "diffusers", tmp_path / "folder", drop_variance=True)
    assert done.paths == (tmp_path / "folder",) and done.flags is None and len(done.notes) == 1
    tensors = load_file(tmp_path / "folder/unet/diffusion_pytorch_model.safetensors")
    assert torch.equal(tensors["conv_out.weight"], diffusion_weights(classes=10)["out.2.weight"][:3])


def test_exports_that_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="to: got 'diffuser', expected one of guided-diffusion, diffusers, nvidia, sit; did you mean \"diffusers\""
    ):
        export_run(run.directory, "diffuser", tmp_path / "a")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"out: got '.*a\.bin', expected the name of a file that ends with \.pt"):
        export_run(run.directory, "guided-diffusion", tmp_path / "a.bin")
    with pytest.raises(ConfigError, match="drop_variance: guided-diffusion makes no use of it"):
        export_run(run.directory, "guided-diffusion", tmp_path / "a.pt", drop_variance=True)
    with pytest.raises(CheckpointError, match="no run in"):
        export_run(tmp_path / "none", "guided-diffusion", tmp_path / "a.pt")
    (tmp_path / "flat").write_text("")
    with pytest.raises(DataError, match=r"cannot write .*flat/a\.pt: "):
        export_run(run.directory, "guided-diffusion", tmp_path / "flat/a.pt")


def test_grey_images_cannot_go_to_the_original(tmp_path: Path) -> None:
    file = saved(tmp_path / "grey.pt", diffusion_weights(channels=1, outputs=2, classes=10))
    run = import_run(file, tmp_path / "run", flags=WORDS)
    assert run.config.data.channels == 1 and run.sample(2, device="cpu").images.shape == (2, 16, 16, 1)
    with pytest.raises(ConfigError, match=r"cannot express this model: data\.channels: 1 "):
        export_run(run.directory, "guided-diffusion", tmp_path / "a.pt")
    assert list_checkpoints(run.directory / "checkpoints") == [0] and not (tmp_path / "a.pt").exists()


def test_deterministic_weights_differ() -> None:
    """What the equalities above rest on."""
    assert not torch.equal(recorded.weight("a", (3,)), recorded.weight("b", (3,)))


# glow ------------------------------------------------------------------------------------------------------------------------

GLOW_FLAGS = {"n_levels": 2, "depth": 1, "width": 4, "flow_coupling": 1, "learntop": True, "image_size": 8}


def test_a_checkpoint_that_tensorflow_wrote(tmp_path: Path) -> None:
    """The run's model is that of the variables as they were handed to TensorFlow; so is its average."""
    run = import_run(written.PREFIX, tmp_path / "run", program="glow", flags={"image_size": 8}, ema_rate=0.9)
    assert run.spec == DataSpec(image_size=8, channels=1) and run.config.train.ema_rates == (0.9,) and run.recipe is None
    values = torch.randint(256, (3, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for weights, made in (("raw", written.value), (None, written.average)):
        wanted = glow.from_variables({name: made(name, shape) for name, shape in written.VARIABLES.items()}, GLOW_FLAGS)
        found = run.load(weights=weights, device="cpu")
        assert isinstance(found, Glow) and found.config == replaced(wanted.config, run.config.model)
        torch.testing.assert_close(found.bits_per_dim(values), wanted.bits_per_dim(values), rtol=1e-6, atol=0)
    origin = json.loads((run.directory / "checkpoints/000000000/state.json").read_text())["imported"]
    parts = [path.read_bytes() for path in tensor_bundle.bundle_files(written.PREFIX)]
    assert origin["sha256"] == hashlib.sha256(b"".join(parts)).hexdigest() and origin["file"] == "model_best_loss.ckpt.index"
    assert (origin["averages"], origin["published"]) == (["ema-0.9"], None)
    assert origin["flags"] == (
        "--problem cifar10 --image_size 8 --width 4 --depth 1 --n_levels 2 --n_bits_x 8 --learntop --weight_y 0.0 --flow_permutation 2 "
        "--flow_coupling 1"
    )


def replaced(model: GlowConfig, by: Any) -> GlowConfig:
    """With what leaves no trace in weights as the other has it."""
    return dataclasses.replace(model, memory=by.memory, init_images=by.init_images, sampling=by.sampling)


def test_recorded_values_after_an_import(tmp_path: Path) -> None:
    """From an .npz of variables, without averages, to the bits per dimension of the original's formulas."""
    arrays, flags = recorded.load("glow")
    np.savez(tmp_path / "w.npz", **{name.removeprefix("weights/"): array for name, array in arrays.items() if name.startswith("weights/")})
    run = import_run(tmp_path / "w.npz", tmp_path / "run", program="glow", flags=flags)
    assert run.recipe is None and (run.config.data.source, run.config.data.image_size) == ("auto", 32)
    assert not list((run.directory / "checkpoints/000000000").glob("ema-*"))
    model = run.load(device="cpu")
    assert isinstance(model, Glow)
    found = model.bits_per_dim(torch.from_numpy(arrays["x"]), noise=torch.from_numpy(arrays["u"]))
    np.testing.assert_allclose(found.numpy(), arrays["bits_per_dim"], atol=1e-5, rtol=0)
    with pytest.raises(ConfigError, match="ema_rate: the checkpoint has no moving averages of all its weights: leave it out"):
        import_run(tmp_path / "w.npz", tmp_path / "again", program="glow", ema_rate=0.9)


def test_published_names_choose_the_recipe(tmp_path: Path) -> None:
    weights = {name: written.value(name, shape) for name, shape in written.VARIABLES.items()}
    for folder, recipe, size, line in (
        ("lsun-rnvp-twr", "glow-lsun-tower", 64, "is the published lsun-rnvp-twr"),
        ("abl-1x1-aff", "glow-cifar10", 32, "is the published abl-1x1-aff"),
        ("abl-1x1-add", None, 32, "has the name of the published abl-1x1-add, but another model"),
    ):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "w.npz", **weights)
        said: list[str] = []
        run = import_run(tmp_path / folder / "w.npz", tmp_path / "runs" / folder, program="glow", report=said.append)
        assert said == [f"{tmp_path / folder / 'w.npz'} {line}"]
        assert (run.recipe, run.spec.image_size, run.config.data.channels) == (recipe, size, 1)
        if recipe is not None:
            going_on = dataclasses.replace(load_recipe(recipe).train, ema_warmup=False)
            assert (run.config.train, run.config.optim) == (going_on, load_recipe(recipe).optim)


def test_the_rate_of_averages_is_that_of_the_flags(tmp_path: Path) -> None:
    """Of eight processes, as the original's recipes: 1 - 1 / (2 ceil(1000 / (8 * 10)))."""
    flags = "--image_size 8 --n_train 1000 --n_batch_train 10 --polyak_epochs 2"
    run = import_run(written.FOLDER, tmp_path / "run", program="glow", flags=flags)
    assert run.config.train.ema_rates == (round(1 - 1 / 26, 6),)


def test_an_imported_glow_trains(tmp_path: Path) -> None:
    run = import_run(written.PREFIX, tmp_path / "run", program="glow", flags="--image_size 8", ema_rate=0.9)
    data = DataConfig(source="digits", image_size=8, labels="none", workers=0, validation_fraction=0.0)
    settings = {"total_images": 12, "batch_size": 6, "sample_count": 0, "sample_every": None, "validate_every": None}
    config = dataclasses.replace(run.config.updated({"train": settings}), data=data)
    train(config, run.directory, device="cpu")
    assert open_run(run.directory).checkpoints()[-1] == 12
    assert "of rate 0.9 starts at" not in (run.directory / "log.txt").read_text(), "it came with the checkpoint"
