"""`triptych glow`: what the original's command lines become."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.interop.checkpoint import FOLDER, PREFIX
from triptych import runs
from triptych.cli import glow, train
from triptych.cli.main import main
from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.flows.glow import GlowConfig
from triptych.interop.glow.flags import FLAGS
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.recipes.config import RunConfig

QUANTITATIVE = "--n_level 3 --flow_permutation 2 --flow_coupling 1 --seed 0 --learntop --lr 0.001 --n_bits_x 8"


def commands(words: str) -> list[list[str]]:
    return list(glow.commands(glow.read(words.split())))


def trained(words: str) -> tuple[list[str], RunConfig]:
    """The one command of a training, and the configuration that it gives."""
    (command,) = commands(words)
    assert command[0] == "train"
    options, config = train.configure(train.base_of(command[1]), command[2:])
    assert options.run is not None
    return command, config


def model_of(config: RunConfig) -> GlowConfig:
    assert isinstance(config.model, GlowConfig)
    return config.model


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_defaults_are_the_originals() -> None:
    command, config = trained("--data_dir bins")
    assert command[2:4] == ["--run", "./logs"]
    model = model_of(config)
    assert (model.levels, model.depth, model.width, model.bits) == (3, 32, 512, 8)
    assert (model.coupling, model.permutation, model.border) == ("additive", "conv", "original")
    assert (model.learn_top, model.class_conditional, model.class_weight) == (False, False, 0.0)
    assert (model.memory, model.init_images) == ("checkpoint", 256)
    assert (config.data.source, config.data.path, config.data.image_size, config.data.channels) == ("cifar10", "bins", 32, 3)
    assert (config.data.augment, config.data.flip, config.data.labels, config.data.pad) == ("shift", False, "none", 0)
    assert (config.data.anchor_size, config.train.batch_size, config.train.microbatch) == (32, 64, None)
    beta2 = round(1 - 1 / 782, 6)  # 50,000 images in steps of 64
    assert (config.optim.name, config.optim.betas, config.optim.weight_decay) == ("adamax-glow", (0.9, beta2), 0.0)
    assert (config.optim.learning_rate, config.optim.warmup_images, config.optim.schedule) == (1e-3, 500_000, "constant")
    assert (config.train.ema_rates, config.train.ema_warmup) == ((beta2,), False)
    epoch = 782 * 64
    assert config.train.total_images == 999_999 * epoch and config.log.every == epoch
    assert (config.train.validate_every, config.train.checkpoint_every, config.train.sample_every) == (50 * epoch,) * 3
    assert (config.train.validate_images, config.train.sample_count, config.train.seed) == (10_000, 100, 0)
    assert (config.train.precision, config.train.compile, config.optim.clip_norm) == ("float32", "off", None)


def test_every_training_flag_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    words = (
        "--problem imagenet --data_dir tfr --category dogs --image_size 64 --logdir there --n_train 1000 --n_test 77 --n_batch_train 32 "
    )
    words += (
        "--n_batch_init 128 --anchor_size 16 --lr 0.01 --beta1 0.5 --polyak_epochs 2 --weight_decay 0.99 --epochs 11 --epochs_warmup 3 "
    )
    words += "--epochs_full_valid 2 --epochs_full_sample 5 --gradient_checkpointing 0 --width 64 --depth 7 --weight_y 0.25 --n_bits_x 5 "
    words += "--n_levels 4 --learntop --ycond --seed 9 --flow_permutation 1 --flow_coupling 1"
    command, config = trained(words)
    assert command[2:4] == ["--run", "there"]
    model = model_of(config)
    assert (model.levels, model.depth, model.width, model.bits, model.coupling, model.permutation) == (4, 7, 64, 5, "affine", "shuffle")
    assert (model.learn_top, model.class_conditional, model.class_weight) == (True, True, 0.25)
    assert (model.memory, model.init_images) == ("autograd", 128)
    assert (config.data.path, config.data.labels, config.data.image_size, config.data.anchor_size) == ("tfr/dogs", "auto", 64, 16)
    steps, images = 8, 4 * 2  # ceil(1000 / (32 * 4)); four processes of 32 * 16^2 / 64^2
    assert config.train.total_images == 10 * steps * images and config.train.batch_size == 32
    assert (config.train.validate_every, config.train.sample_every) == (2 * steps * images, 5 * steps * images)
    assert config.optim.betas == (0.5, round(1 - 1 / (2 * steps), 6)) and config.train.ema_rates == (config.optim.betas[1],)
    assert (config.optim.weight_decay, config.optim.learning_rate, config.optim.warmup_images) == (0.01, 0.01, 3_000)
    assert (config.train.validate_images, config.train.seed) == (77, 9)
    assert model_of(trained("--data_dir x --gradient_checkpointing 2")[1]).memory == "autograd", "1 alone means yes there"


@pytest.mark.parametrize(
    ("words", "recipe", "crop", "tested"),
    [
        (f"cifar10 --image_size 32 --depth 32 {QUANTITATIVE}", "glow-cifar10", "center", 10_000),
        (f"imagenet-oord --image_size 64 --depth 48 {QUANTITATIVE} --n_level 4", "glow-imagenet64", "center", 50_000),
        (f"lsun_realnvp --category tower --depth 48 {QUANTITATIVE}", "glow-lsun-tower", "random", 300),
        (f"celeba --depth 32 {QUANTITATIVE} --n_level 6 --flow_coupling 0 --n_bits_x 5", "glow-celebahq256", "center", 3_000),
        (f"cifar10 --depth 32 {QUANTITATIVE} --flow_c 0 --n_bits_x 5 --ycond --weight_y=0.01", "glow-cifar10-cond", "center", 10_000),
    ],
)
def test_the_originals_recipes_are_ours(words: str, recipe: str, crop: str, tested: int) -> None:
    """Those of openai/glow's README."""
    command, config = trained(f"--problem {words} --data_dir x")
    wanted, found = model_of(load_recipe(recipe)), model_of(config)
    for name in ("levels", "depth", "width", "coupling", "permutation", "bits", "learn_top", "class_conditional", "class_weight"):
        assert getattr(found, name) == getattr(wanted, name), name
    size = load_recipe(recipe).data.image_size
    assert (config.data.image_size, config.data.crop, config.train.validate_images) == (size, crop, tested)
    assert config.data.path == ("x/tower" if "category" in words else "x")
    assert config.train.sample_count == (16 if size > 64 else 100)
    assert command[1] in recipes() and (size > 32 or command[1] == recipe), "the one that needs the fewest settings"


def test_mnist_and_levels_of_augmentation() -> None:
    for level, mnist, cifar in ((0, "none", "none"), (1, "shift", "shift"), (2, "shift", "affine")):
        for problem, wanted in (("mnist", mnist), ("cifar10", cifar)):
            _, config = trained(f"--problem {problem} --data_dir x --dal {level}")
            assert config.data.augment == wanted
            assert (config.data.source, config.data.pad, config.data.channels) == (problem, 2 if problem == "mnist" else 0, 3)


def test_flags_without_a_meaning_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    _, config = trained("--problem celeba --data_dir x --fmap 2 --pmap 4 --n_batch_test 3 --n_sample 5 --dal 0 --weight_y 0.1 --verbose")
    notes = capsys.readouterr().err
    for name in ("fmap", "pmap", "n_batch_test", "n_sample", "dal", "weight_y", "epochs"):
        assert f"triptych: note: --{name} " in notes, name
    assert config.log.every == 1, "a line for each step, of one image"
    trained("--data_dir x --epochs 3 --optimizer adam2")
    notes = capsys.readouterr().err
    assert notes.startswith("triptych: note: --optimizer adam2 ") and notes.count("\n") == 1
    assert trained("--data_dir x --optimizer adam")[1].optim.name == "adam"


def test_weights_to_begin_with(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = commands(f"--data_dir x --restore_path {PREFIX} --depth 1 --learntop --lr 0.1")
    run = first[first.index("--run") + 1]
    assert first == ["import", "glow", str(PREFIX), "--run", run, "--flags", "--depth 1 --learntop"]
    assert second[second.index("--init-from") + 1] == run
    assert "note: --restore_path gives the weights alone; a run of Triptych goes on exactly when" in capsys.readouterr().err
    Path(run).mkdir(parents=True)
    (Path(run) / "config.json").write_text("{}")
    assert commands(f"--data_dir x --restore_path {PREFIX} --depth 1 --learntop --lr 0.1") == [second], "imported before"
    (direct,) = commands(f"--data_dir x --restore_path {run}")
    assert direct[direct.index("--init-from") + 1] == run


def test_a_folder_of_weights_is_imported_again_when_they_changed(in_tmp: Path) -> None:
    shutil.copytree(FOLDER, "logs/first", ignore=shutil.ignore_patterns("sliced"))
    runs = []
    for seconds in (1, 2):
        os.utime(f"logs/first/{PREFIX.name}.index", (seconds, seconds))
        for path in ("logs", "logs/first", f"logs/first/{PREFIX.name}", "."):
            first, _ = commands(f"--data_dir x --restore_path {path}")
            runs.append(first[first.index("--run") + 1])
    assert len(set(runs[:3] + runs[4:7])) == 6 and runs[3] == runs[7], "two folders up it is not looked for"


def test_the_rate_of_averages_stays_below_1() -> None:
    _, config = trained("--data_dir x --polyak_epochs 1e9")
    assert config.optim.betas == (0.9, 0.999999) and config.train.ema_rates == (0.999999,)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--data_dir x --n_levls 3", '--n_levls: unknown flag; did you mean "--n_levels"?'),
        ("--data_dir x --n_b 3", "--n_b: several flags begin so: --n_bits_x, --n_batch_train, --n_batch_test, --n_batch_init"),
        ("--data_dir x --depth deep", "--depth: got 'deep', expected a whole number"),
        ("--data_dir x --depth", "--depth: the value is missing"),
        ("--data_dir x --depth 0", "--depth: got 0, expected at least 1"),
        ("--data_dir x --n_levels 0", "--n_levels: got 0, expected 1 to 16"),
        ("--data_dir x --n_bits_x 9", "--n_bits_x: got 9, expected 1 to 8"),
        ("--data_dir x --learntop yes", "flags: unexpected 'yes'; flags are given as --name value"),
        ("--data_dir x --learntop=False", "--learntop: got 'False', but this flag takes no value"),
        ("--data_dir x --problem svhn", "--problem: got 'svhn', expected mnist, cifar10, imagenet-oord"),
        ("--data_dir x --flow_coupling 2", "--flow_coupling: got 2, expected 0, 1"),
        ("--data_dir x --dal 3", "--dal: got 3, expected 0, 1, 2"),
        ("--data_dir x --optimizer sgd", "--optimizer: got 'sgd', expected adamax, adam, adam2"),
        ("--data_dir x --weight_decay 1.5", "--weight_decay: got 1.5, expected more than 0 and at most 1"),
        ("--data_dir x --weight_decay 0.9 --optimizer adam", "--weight_decay: got 0.9, which goes with --optimizer adamax alone"),
        ("--data_dir x --lr 0", "--lr: got 0.0, expected a positive number"),
        ("--data_dir x --beta1 1", "--beta1: got 1.0, "),
        ("--data_dir x --epochs 1", "--epochs: got 1, expected at least 2"),
        ("--data_dir x --n_batch_train 0", "--n_batch_train: got 0, expected more than 0"),
        ("--data_dir x --polyak_epochs nan", "--polyak_epochs: got nan, expected more than 0"),
        ("--data_dir x --logdir=", "--logdir: got '', expected the directory of the run"),
        (
            "--data_dir x --n_levels 6 --epochs 2",
            "--n_levels: got 6 for images of 32 pixels (--image_size), which have to be a multiple of 2^6",
        ),
        (
            "--data_dir x --image_size 36 --epochs 2",
            "--n_levels: got 3 for images of 36 pixels (--image_size), which have to be a multiple of",
        ),
        ("--data_dir x --n_levels 99999999999 --epochs 2", "--n_levels: got 99999999999, expected 1 to 16"),
        (
            "--data_dir x --inference --n_test 0",
            "--n_test: got 0, expected at least 1 with --inference, or -1 for the number of the problem",
        ),
        ("--data_dir x --polyak_epochs 0", "--polyak_epochs: got 0.0, expected more than 0"),
        ("--data_dir x --n_batch_init 1", "--n_batch_init: got 1, expected at least 2"),
        ("--data_dir x --n_test -5", "--n_test: got -5, expected 0 or more"),
        ("--data_dir x --epochs_warmup -1", "--epochs_warmup: got -1, expected 0 or more"),
        ("--data_dir x --image_size 0", "--image_size: got 0, expected at least 1"),
        ("--data_dir nowhere --epochs 2", "nowhere: does not exist"),
        ("--problem cifar10", "--data_dir: missing: the folder of CIFAR-10's .bin files (nothing is downloaded)"),
        ("--problem lsun --category tower", "--data_dir: missing: the folder of the original's TFRecord files, or of images"),
        ("--inference --data_dir x", "--restore_path: missing: --inference needs a checkpoint, or a run in --logdir, and logs holds none"),
        ("--restore_path none.ckpt --data_dir x", "there is no checkpoint none.ckpt"),
        ("--restore_path none.ckpt --data_dir x --lr 0", "--lr: got 0.0, expected a positive number"),
        ("python", "got 'python'; begin with the flags"),
        ("mpiexec -n 8 python train.py", "got 'mpiexec'; begin with the flags, for several processes so: torchrun --nproc-per-node N"),
    ],
)
def test_mistakes(words: str, line: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glow", *words.split()]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("triptych: error: ") and line in error


def test_latents_are_written_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glow, "num_processes", lambda: 2)
    with pytest.raises(ConfigError, match="--inference: it runs in one process; leave out torchrun"):
        commands("--data_dir x --inference")


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glow", "--help"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("usage: triptych glow ") and all(f"--{flag}" in page for flag in FLAGS)
    assert main(["glow"]) == 2
    assert len(FLAGS) == 38


def photographed(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for k in range(count):
        Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{k:03d}.png")


@pytest.mark.parametrize("num_classes", [None, 2])
def test_the_images_of_latents_have_classes_where_the_run_has_some(
    num_classes: int | None, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cats", "dogs"):
        photographed(in_tmp / "photos" / name, 20)
    (in_tmp / "logs").mkdir()
    (in_tmp / "logs" / "config.json").touch()
    asked: list[Path] = []
    spec = DataSpec(image_size=8, channels=3, num_classes=num_classes)
    monkeypatch.setattr(runs, "open_run", lambda run: asked.append(run) or SimpleNamespace(spec=spec))
    there, back = commands("--inference --problem celeba --data_dir photos --image_size 8 --n_test 1")
    assert asked == [Path("logs")] and (there[0], back[-3], back[-1]) == ("encode", "--decode", "logs/x.npz")
    with np.load("logs/test.npz") as images:
        assert images["arr_0"].shape == (1, 8, 8, 3) and ("arr_1" in images) == (num_classes is not None)
    (in_tmp / "more").mkdir()
    there, back = commands("--inference --restore_path logs --logdir more --problem celeba --data_dir photos --image_size 8 --n_test 1")
    assert asked == [Path("logs")] * 2 and there[:3] == ["encode", "logs", "more/test.npz"] and back[-1] == "more/x.npz"


@pytest.mark.slow
def test_from_pictures_to_latents_and_back(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the original's words alone; the printed commands are the ones that ran."""
    photographed(in_tmp / "photos", 40)
    network = "--image_size 8 --n_levels 2 --depth 1 --width 4 --learntop --flow_coupling 1"
    counts = "--n_train 8 --n_batch_train 64 --anchor_size 2 --n_batch_init 64 --epochs 3 --n_test 2"
    words = f"python train.py --problem celeba --data_dir photos {network} {counts}".split()
    assert main(["glow", *words]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("triptych train")]
    assert len(printed) == 1 and "--run ./logs" in printed[0] and "--data.anchor-size 2" in printed[0]
    assert main(["glow", *words, "--inference"]) == 0
    shown = capsys.readouterr().out
    assert "triptych encode logs logs/test.npz --out logs/z.npz\n" in shown
    with np.load("logs/test.npz") as images, np.load("logs/x.npz") as decoded, np.load("logs/z.npz") as latents:
        assert images["arr_0"].shape == (2, 8, 8, 3) and latents["arr_0"].shape == (2, 6, 4, 4)
        np.testing.assert_array_equal(images["arr_0"], decoded["arr_0"])
    images_of = "--problem celeba --data_dir photos --image_size 8 --n_test 1"
    assert main(["glow", *images_of.split(), "--inference", "--restore_path", "logs", "--logdir", "more"]) == 0
    with np.load("more/x.npz") as decoded:
        assert len(decoded["arr_0"]) == 1
