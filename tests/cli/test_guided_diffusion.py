"""`triptych guided-diffusion`: what the original's command lines become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from triptych.cli import guided_diffusion as gd
from triptych.cli import train
from triptych.cli.main import main
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.super_resolution import SuperResolutionConfig
from triptych.interop.guided_diffusion.commands import ENDLESS_IMAGES
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig


def commands(script: str, words: str) -> list[list[str]]:
    return list(gd.commands(gd.read(script, words.split())))


def trained(script: str, words: str) -> tuple[list[str], RunConfig]:
    """The one command of a training script, and the configuration that it gives."""
    (command,) = commands(script, words)
    assert command[0] == "train"
    options, config = train.configure(train.base_of(command[1]), command[2:])
    assert options.run is not None
    return command, config


def photographed(count: int) -> None:
    """Makes the folder photos, with images of two classes."""
    generator = np.random.default_rng(0)
    Path("photos").mkdir()
    for k in range(count):
        pixels = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"photos/{'cat' if k % 2 else 'dog'}_{k}.png")


PUBLISHED_64 = (
    "--image_size 64 --class_cond True --learn_sigma True --noise_schedule cosine --num_channels 192 --num_res_blocks 3 "
    "--num_head_channels 64 --attention_resolutions 32,16,8 --resblock_updown True --use_new_attention_order True "
    "--use_scale_shift_norm True --dropout 0.1"
)


def test_the_defaults_are_the_originals() -> None:
    _, config = trained("image_train", "--data_dir photos")
    model = config.model
    assert isinstance(model, ADMConfig)
    assert (model.network.num_channels, model.network.num_res_blocks, model.network.num_heads) == (128, 2, 4)
    assert (model.network.num_head_channels, model.network.attention_resolutions, model.network.attention_order) == (
        None,
        (16, 8),
        "legacy",
    )
    assert (model.network.scale_shift_norm, model.network.resblock_updown, model.network.dropout) == (True, False, 0.0)
    assert (model.diffusion.steps, model.diffusion.schedule, model.diffusion.variance) == (1000, "linear", "fixed_large")
    assert (model.diffusion.loss, model.class_conditional, model.timestep_sampler) == ("mse", False, "uniform")
    assert (config.data.path, config.data.image_size, config.data.labels, config.data.flip) == ("photos", 64, "none", True)
    assert (config.data.crop, config.data.validation_fraction, config.data.channels) == ("center", 0.0, 3)
    assert config.data.enlarge, "the original enlarges images that are too small"
    assert (config.train.batch_size, config.train.microbatch, config.train.precision) == (1, None, "float32")
    assert (config.train.ema_rates, config.train.ema_warmup, config.train.total_images) == ((0.9999,), False, ENDLESS_IMAGES)
    assert (config.train.checkpoint_every, config.log.every) == (10_000, 10)
    assert (config.optim.learning_rate, config.optim.weight_decay, config.optim.schedule) == (1e-4, 0.0, "constant")


def test_every_training_flag_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    words = "--data_dir x --batch_size 8 --microbatch 2 --lr 3e-4 --weight_decay 0.1 --lr_anneal_steps 500 --ema_rate 0.9,0.99 --run there "
    words += "--log_interval 5 --save_interval 100 --use_fp16 True --fp16_scale_growth 1e-2 --schedule_sampler loss-second-moment "
    words += "--use_kl True --rescale_timesteps True --diffusion_steps 4000 --use_checkpoint True --class_cond True --num_heads_upsample 2"
    command, config = trained("image_train", words)
    assert command[2:4] == ["--run", "there"]
    assert (config.train.batch_size, config.train.microbatch, config.train.total_images) == (32, 2, 500 * 32)
    assert (config.train.precision, config.train.loss_scale_growth, config.train.ema_rates) == ("fp16", 1e-2, (0.9, 0.99))
    assert config.train.loss_scale == 2.0**20
    assert (config.train.checkpoint_every, config.log.every) == (3200, 160)
    assert (config.optim.learning_rate, config.optim.weight_decay, config.optim.schedule) == (3e-4, 0.1, "linear")
    model = config.model
    assert isinstance(model, ADMConfig)
    assert (model.timestep_sampler, model.class_conditional, config.data.labels) == ("loss-second-moment", True, "prefix")
    assert (model.diffusion.loss, model.diffusion.steps, model.diffusion.rescale_timesteps) == ("rescaled_kl", 4000, True)
    assert (model.network.checkpoint, model.network.num_heads_upsample) == (True, 2)


def test_levels_without_attention() -> None:
    """As in an export of a network that has it on no level, whose flag cannot be empty: 128 is reached by none of 64 pixels."""
    for words in (
        "--image_size 64 --channel_mult 1,2 --attention_resolutions 128",
        "--image_size 16 --channel_mult 1,2 --attention_resolutions 4",
    ):
        _, config = trained("image_train", f"--data_dir x --num_channels 32 {words}")
        assert isinstance(config.model, ADMConfig) and config.model.network.attention_resolutions == ()


def test_published_flags_lead_to_the_published_recipe() -> None:
    command, config = trained("image_train", f"--data_dir x {PUBLISHED_64} --lr 3e-4")
    assert command[1] == "adm-imagenet64"
    recipe = load_recipe("adm-imagenet64").model
    assert isinstance(recipe, ADMConfig) and isinstance(config.model, ADMConfig)
    assert (config.model.network, config.model.diffusion) == (recipe.network, recipe.diffusion)
    command, config = trained("super_res_train", "--data_dir x --large_size 256 --small_size 64 --num_channels 192 --class_cond True "
                              "--attention_resolutions 32,16,8 --learn_sigma True --resblock_updown True")  # fmt: skip
    assert command[1] == "adm-upsample-64-256" and isinstance(config.model, SuperResolutionConfig)
    assert (config.model.small_size, config.data.image_size) == (64, 256)


def test_a_classifier(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--data_dir x --image_size 128 --iterations 300000 --anneal_lr True --batch_size 256 --lr 3e-4 --weight_decay 0.05"
    command, config = trained("classifier_train", words)
    assert command[1] == "classifier-imagenet128" and isinstance(config.model, ClassifierConfig)
    assert (config.train.total_images, config.optim.schedule, config.optim.weight_decay) == (300_000 * 256, "linear", 0.05)
    assert (config.train.ema_rates, config.data.crop, config.data.labels, config.data.validation_fraction) == ((), "random", "prefix", 0.0)
    assert config.model == load_recipe("classifier-imagenet128").model
    words = "--data_dir x --val_data_dir y --noised False --classifier_pool spatial_v2 --classifier_width 64 --classifier_use_fp16 True"
    _, config = trained("classifier_train", f"{words} --eval_interval 3")
    notes = capsys.readouterr().err
    assert "--val_data_dir is not read: " in notes and "--eval_interval is not used: " in notes
    assert isinstance(config.model, ClassifierConfig)
    assert (config.model.noised, config.model.pool, config.model.network.num_channels) == (False, "spatial_v2", 64)
    assert (config.data.validation_fraction, config.train.precision) == (0.05, "fp16")
    assert (config.train.loss_scale, config.train.loss_scale_growth) == (2.0**16, 1e-3)


def test_samples_come_from_imported_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_LOGDIR", raising=False)
    words = f"--model_path net.pt {PUBLISHED_64} --timestep_respacing ddim25 --use_ddim True --num_samples 20 --batch_size 5"
    first, second = commands("image_sample", words)
    run = first[first.index("--run") + 1]
    assert first[:3] == ["import", "guided-diffusion", "net.pt"] and "--num_channels 192" in first[first.index("--flags") + 1]
    assert second[:2] == ["sample", run]
    asked = dict(zip(second[2::2], second[3::2], strict=True))
    assert asked == {
        "--count": "20",
        "--batch-size": "5",
        "--sampler": "ddim",
        "--steps": "ddim25",
        "--clip": "True",
        "--precision": "float32",
        "--out": "./samples_20x64x64x3.npz",
    }
    other = commands("image_sample", f"{words} --diffusion_steps 4000")[0]
    assert other[other.index("--run") + 1] != run, "other flags, another import"
    Path(run).mkdir(parents=True)
    (Path(run) / "config.json").write_text("{}")
    assert commands("image_sample", words) == [second], "imported before"
    for further in ("--timestep_respacing 10", "--use_fp16 True", "--use_ddim False --clip_denoised False"):
        ((verb, same, *_),) = commands("image_sample", f"{words} {further}")
        assert (verb, same) == ("sample", run), "these are settings of sampling"
    (direct,) = commands("image_sample", f"--model_path {run} --num_samples 3 --out a.npz")
    assert direct[:2] == ["sample", run] and direct[-1] == "a.npz"


def test_the_other_samplers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_LOGDIR", "logs")
    *imports, guided = commands("classifier_sample", f"--model_path net.pt --classifier_path judge.pt --classifier_scale 4 {PUBLISHED_64}")
    assert [command[2] for command in imports] == ["net.pt", "judge.pt"]
    assert "--classifier_width" not in imports[0][-1] and "--num_channels" not in imports[1][-1]
    assert guided[guided.index("--guide") + 1] == imports[1][imports[1].index("--run") + 1]
    assert guided[guided.index("--guidance-scale") + 1] == "4.0" and guided[-1] == "logs/samples_10000x64x64x3.npz"
    assert "note: classes are taken in turn, where the original draws them at random; --labels" in capsys.readouterr().err
    *_, upsampled = commands(
        "super_res_sample", "--model_path up.pt --base_samples base.npz --num_samples 3 --large_size 128 --small_size 32 --use_ddim True"
    )
    assert upsampled[2:4] == ["--base", "base.npz"] and upsampled[upsampled.index("--sampler") + 1] == "ddim"
    photographed(2)
    *_, nll = commands("image_nll", "--model_path net.pt --data_dir photos --num_samples 2 --batch_size 2 --clip_denoised False")
    assert nll[0] == "evaluate" and nll[nll.index("--data.path") + 1] == "photos" and nll[nll.index("--clip") + 1] == "False"
    assert nll[-2:] == ["--out", "logs/image_nll.json"] and "--num_samples" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("image_trian", 'unknown script "image_trian"; did you mean "image_train"?'),
        ("evaluations/evaluator.py r.npz s.npz", "got 'evaluations/evaluator.py': for it there is `triptych evaluate SAMPLES.npz"),
        ("image_train --data_dir x --num_chanels 3", '--num_chanels: unknown flag; did you mean "--num_channels"?'),
        ("image_train --data_dir x --num_channels wide", "--num_channels: got 'wide', expected a whole number"),
        ("image_train --data_dir x --image_size", "--image_size: the value is missing"),
        ("image_train --data_dir x --image_size 100", "--image_size: got 100"),
        ("super_res_train --data_dir x --large_size 100", "--large_size: got 100, which has default levels for 64, 256, 512 only"),
        ("classifier_train --data_dir x --image_size 32", "--image_size: got 32, which has default levels for"),
        ("classifier_train --data_dir x --iterations 0", "--iterations: got 0, expected at least 1"),
        ("image_train --data_dir x --lr_anneal_steps -5", "--lr_anneal_steps: got -5, expected at least 0"),
        ("python -u scripts/image_train.py --data_dir x", "got 'python -u'; begin with the script, for several processes so: torchrun"),
        ("image_train --data_dir x --num_channels 0", "--num_channels: got 0, expected at least 1"),
        ("image_train --data_dir x --num_head 4", "--num_head: several flags begin so: --num_heads, --num_heads_upsample"),
        ("image_train --data_dir --lr 1e-4", "--data_dir: the value is missing"),
        ("image_nll --data_dir nowhere --model_path a.pt", "nowhere: does not exist"),
        ("python", "got 'python'; begin with the script"),
        ("mpiexec -n 8 python scripts/image_train.py", "got 'mpiexec'; begin with the script, for several processes so: torchrun --nproc"),
        ("image_train --data_dir x --noise_schedule sqrt", "noise_schedule: got 'sqrt'"),
        ("image_train --data_dir x --schedule_sampler best", "--schedule_sampler: got 'best', expected one of"),
        ("image_train --data_dir x --diffusion_steps 0", "--diffusion_steps: got 0, expected 1 to 1,000,000"),
        ("image_train --data_dir x --batch_size 0", "--batch_size: got 0, expected at least 1"),
        ("image_train --data_dir x --lr 0", "--lr: got 0.0, expected a positive number"),
        ("image_train --data_dir x --save_interval 0", "--save_interval: got 0, expected at least 1"),
        ("image_train --data_dir x --ema_rate high", "--ema_rate: got 'high', expected numbers separated by commas"),
        ("classifier_train --data_dir x --classifier_depth 0", "--classifier_depth: got 0, expected at least 1"),
        ("classifier_train --data_dir x --classifier_pool mean", "--classifier_pool: got 'mean', expected one of"),
        ("image_nll --data_dir x --model_path a.pt --image_size 0", "--image_size: got 0, expected 1 to"),
        ("image_train --data_dir x --resume_checkpoint none.pt --lr 0", "--lr: got 0.0, expected a positive number"),
        ("image_train", "--data_dir: missing: the folder of the images"),
        ("image_nll --model_path a.pt", "--data_dir: missing: the folder of the images"),
        ("image_sample", "--model_path: missing"),
        ("classifier_sample --model_path runs/a", "--classifier_path: missing"),
        ("super_res_sample --model_path a.pt", "--base_samples: missing"),
    ],
)
def test_mistakes(words: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/config.json").write_text("{}")
    assert main(["guided-diffusion", *words.split()]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("triptych: error: ") and line in error


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guided-diffusion", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(script in shown for script in gd.SCRIPTS)
    assert main(["guided-diffusion"]) == 2
    for script in gd.SCRIPTS:
        assert main(["guided-diffusion", f"scripts/{script}.py", "--help"]) == 0
        page = capsys.readouterr().out
        assert page.startswith(f"usage: triptych guided-diffusion {script} ")
        assert all(f"--{flag}" in page for flag in gd.SCRIPTS[script].flags())
    assert "--num_res_blocks           2\n" in page


def test_copied_command_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With python and a path before the script, and with all flags in one word, as zsh hands over a variable."""
    monkeypatch.chdir(tmp_path)
    for words in (["python", "scripts/image_sample.py"], ["image_sample"]):
        assert main(["guided-diffusion", *words, PUBLISHED_64, "--model_path", "net.pt"]) == 2
        shown = capsys.readouterr()
        assert shown.out.startswith("triptych import guided-diffusion net.pt") and "--num_channels 192" in shown.out
        assert shown.err.splitlines()[-1] == "triptych: error: there is no file net.pt"


def test_another_file_of_the_same_name_is_another_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    runs = set()
    for content in ("a", "bb"):
        Path("ema_latest.pt").write_text(content)
        ((_, _, _, _, run, *_), _) = commands("image_sample", "--model_path ema_latest.pt --image_size 64")
        runs.add(run)
    assert len(runs) == 2


def test_more_samples_than_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The original begins again with the first image; here each is taken once."""
    monkeypatch.chdir(tmp_path)
    photographed(3)
    *_, nll = commands("image_nll", "--model_path net.pt --data_dir photos --image_size 16")
    assert nll[nll.index("--count") + 1] == "3"
    assert "--num_samples 1000: there are 3 images, each of which is taken once" in capsys.readouterr().err
    np.savez("base.npz", np.zeros((5, 64, 64, 3), np.uint8))
    *_, upsampled = commands("super_res_sample", "--model_path up.pt --base_samples base.npz")
    assert upsampled[upsampled.index("--count") + 1] == "5" and upsampled[-1].endswith("samples_5x256x256x3.npz")
    Path("base").mkdir()
    Path("base/config.json").write_text("{}")
    *_, drawn = commands("super_res_sample", "--model_path up.pt --base_samples base")
    assert drawn[drawn.index("--count") + 1] == "10000", "a run draws as many as are wanted"


def test_a_training_and_samples_of_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From pictures to samples with the original's words alone; the printed commands are the ones that ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_LOGDIR", raising=False)
    photographed(8)
    network = "--image_size 16 --channel_mult 1,1 --num_channels 32 --num_res_blocks 1 --attention_resolutions 8 "
    network += "--class_cond True --learn_sigma True"
    arguments: Any = f"image_train --data_dir photos {network} --batch_size 2 --lr_anneal_steps 2 --log_interval 1".split()
    assert main(["guided-diffusion", *arguments]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("triptych train")]
    assert len(printed) == 1 and "--data.labels prefix" in printed[0]
    assert main(["export", "runs/image_train", "--to", "guided-diffusion", "--out", "net.pt"]) == 0
    arguments = f"image_sample --model_path net.pt {network} --num_samples 3 --timestep_respacing 2 --out out.npz".split()
    for _ in range(2):
        assert main(["guided-diffusion", *arguments]) == 0
    with np.load("out.npz") as file:
        assert file["arr_0"].shape == (3, 16, 16, 3) and file["arr_1"].tolist() == [0, 1, 0]
