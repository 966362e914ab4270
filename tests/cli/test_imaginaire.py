"""`triptych imaginaire` and `triptych import imaginaire`: what the original's command line becomes, and what is said of it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interop.imaginaire_files import changed, checkpoint, small, written
from tests.runs.test_imaginaire_import import photographed, short
from triptych.cli import imaginaire, import_
from triptych.cli.main import main
from triptych.core.errors import CheckpointError
from triptych.core.model import seeded_build
from triptych.interop.imaginaire.experiment import read_experiment
from triptych.interop.imaginaire.flags import FLAGS, read_flags
from triptych.interop.imaginaire.yaml_file import YamlFile
from triptych.runs import open_run


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(words: str) -> list[str]:
    return [shlex.join(command) for command in imaginaire.commands(read_flags(shlex.split(words)))]


def failed(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(shlex.split(words)) == 2
    shown = capsys.readouterr().err.splitlines()
    assert shown[-1].startswith("triptych: error: ")
    return shown[-1].removeprefix("triptych: error: ")


def test_the_defaults_are_the_originals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert commands("--config a/b.yaml --logdir r") == ["import imaginaire a/b.yaml --run r", "train r --train.seed 2"]
    monkeypatch.setattr(imaginaire.time, "strftime", lambda form: {"%Y_%m%d_%H%M_%S": "2021_1101_1200_00"}[form])
    assert commands("--config a/b.yaml")[1] == "train logs/2021_1101_1200_00_b --train.seed 2"
    assert set(FLAGS) == {
        *("config", "logdir", "checkpoint", "seed", "randomized_seed", "local_rank", "single_gpu", "debug", "use_jit"),
        *("profile", "wandb", "wandb_name", "wandb_id", "resume", "num_workers"),
    }


def test_every_flag_arrives(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    Path("w.pt").write_text("")
    words = (
        "--config c.yaml --logdir r --checkpoint w.pt --seed 5 --local-rank 0 --single_gpu --use_jit --profile --wandb --wandb_name name"
    )
    words += " --wandb_id abc --resume 1 --num_workers=3 --data.path photos --model.perceptual.weights=vgg.pth --train.total-images 9"
    first, second = commands(words)
    assert first == "import imaginaire c.yaml w.pt --run r --data photos --processes 4"
    assert second == (
        "train r --train.seed 5 --data.workers 3 --train.profile-steps 10 --log.wandb online --log.wandb-project name --data.path photos "
        "--model.perceptual.weights=vgg.pth --train.total-images 9"
    )
    assert Path("r/wandb_id.txt").read_text() == "abc\n"
    notes = capsys.readouterr().err
    for start in (
        "--local_rank is not used: torchrun",
        "--use_jit is not used: ",
        "--single_gpu is not used: ",
        "--resume 1 gives the weights",
    ):
        assert f"triptych: note: {start}" in notes
    assert "wandb" not in commands("--config c.yaml --logdir q --wandb --debug")[1]


@pytest.mark.parametrize("word", ["--logdir runs/a--local-rank", "--logdir=runs/a--local-rank"])
def test_a_folder_that_is_called_like_a_flag(word: str) -> None:
    assert commands(f"--config c.yaml {word} --local-rank=0")[0] == "import imaginaire c.yaml --run runs/a--local-rank"


@pytest.mark.parametrize("last", ["--data.path b", "--data.path=b"])
def test_the_last_folder_is_counted_as_it_is_trained_on(last: str) -> None:
    assert commands(f"--config c.yaml --logdir r --data.path=a {last}")[0] == "import imaginaire c.yaml --run r --data b"


def test_an_id_that_cannot_be_written() -> None:
    Path("r/wandb_id.txt").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"^cannot write r/wandb_id.txt: Is a directory$"):
        commands("--config c.yaml --logdir r --data.path a --wandb_id abc")


def test_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = {commands("--config c.yaml --logdir r --randomized_seed")[1].rpartition(" ")[2] for _ in range(3)}
    assert len(drawn) > 1 and all(0 <= int(seed) <= 10_000 for seed in drawn)
    assert capsys.readouterr().err.count("triptych: note: drew seed ") == 3


def test_a_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    Path("r").mkdir()
    Path("r/config.json").write_text("{}")
    assert len(commands("--config c.yaml --logdir r")) == 2, "it has settings alone"
    Path("r/metrics.jsonl").write_text("")
    assert commands("--config c.yaml --logdir r") == ["train r"]
    assert commands("--config c.yaml --logdir r --seed 3 --checkpoint w.pt --randomized_seed") == ["train r"]
    assert commands("--config c.yaml --logdir r --seed 3 --resume 1") == ["train r --train.seed 3"]
    notes = capsys.readouterr().err
    assert "r holds a run: it goes on with its own settings" in notes and "--checkpoint is not used" in notes
    assert failed("imaginaire --config c.yaml --logdir r --resume 0", capsys) == "--resume: got 0, but r holds a run; give another --logdir"


def test_an_import_that_was_not_trained_begins_like_a_new_run(capsys: pytest.CaptureFixture[str]) -> None:
    """As where the training failed at once, for want of a file that it needs."""
    Path("r/checkpoints/000000000").mkdir(parents=True)
    Path("r/config.json").write_text("{}")
    Path("r/checkpoints/000000000/state.json").write_text("{}")
    assert commands("--config c.yaml --logdir r --checkpoint w.pt --resume 0 --wandb_id abc") == ["train r --train.seed 2"]
    (drawn,) = commands("--config c.yaml --logdir r --checkpoint w.pt --randomized_seed")
    assert drawn.startswith("train r --train.seed ")
    assert "r has the weights of an import before, and was not trained yet" in capsys.readouterr().err
    assert Path("r/wandb_id.txt").read_text() == "abc\n"
    Path("r/checkpoints/000000004").mkdir()
    assert commands("--config c.yaml --logdir r") == ["train r"], "it has a checkpoint of its own"
    Path("r/checkpoints/000000004").rmdir()
    Path("r/metrics.jsonl").write_text("")
    assert commands("--config c.yaml --logdir r --checkpoint w.pt --wandb_id abc") == ["train r"]
    assert "--wandb_id is not used: the run keeps its own" in capsys.readouterr().err


def test_an_import_that_fails_leaves_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.yaml").write_text("gen: {}")
    assert "gen.type: missing" in failed("imaginaire --config c.yaml --logdir r --wandb_id abc --data.path .", capsys)
    assert not Path("r").exists()


def test_debugging_stays_off_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--debug` is also a word of ours."""
    ran: list[list[str]] = []
    monkeypatch.setattr("triptych.cli.originals._run", lambda command: ran.append(command) or 0)
    for debug in ([], ["--debug"]):
        assert main(["imaginaire", "--config", "c.yaml", "--logdir", "r", "--wandb", *debug]) == 0
        assert ("--log.wandb" in ran[-1]) == (not debug)


def test_weights_of_a_checkpoint_of_a_run_to_begin_with() -> None:
    Path("other/checkpoints/000000004").mkdir(parents=True)
    Path("other/config.json").write_text("{}")
    *_, train = commands("--config c.yaml --logdir r --checkpoint other/checkpoints/000000004")
    assert train == "train r --init-from other/checkpoints/000000004 --train.seed 2"


def test_weights_of_a_run_to_begin_with() -> None:
    Path("other").mkdir()
    Path("other/config.json").write_text("{}")
    first, second = commands("--config c.yaml --logdir r --checkpoint other")
    assert first == "import imaginaire c.yaml --run r" and second == "train r --init-from other --train.seed 2"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("imaginaire --logdir r", "--config: missing: the YAML file"),
        ("imaginaire --config c.yaml --confg d", '--confg: unknown flag; did you mean "--config"?'),
        ("imaginaire --config c.yaml --seed many", "--seed: got 'many', expected a whole number"),
        ("imaginaire --config c.yaml --seed -1", "--seed: got -1, expected 0 or more"),
        ("imaginaire --config c.yaml --resume 2", "--resume: got '2', expected 0 or 1"),
        ("imaginaire --config c.yaml --num_workers x", "--num_workers: got 'x', expected a whole number"),
        ("imaginaire --config c.yaml --logdir r --checkpoint none.pt", "there is no checkpoint none.pt"),
        ("imaginaire --config none.yaml --logdir r", "there is no file none.yaml"),
        ("imaginaire python", "got 'python'; begin with the flags"),
        (
            "imaginaire inference.py --config c.yaml",
            "got 'inference.py', expected train.py; for inference.py there is `triptych translate RUN",
        ),
        (
            "imaginaire python a/evaluate.py --config c.yaml",
            "got 'a/evaluate.py', expected train.py; for evaluate.py there is `triptych evaluate",
        ),
        ("imaginaire other.py --config c.yaml", "got 'other.py', expected train.py"),
        (
            "imaginaire --config c.yaml --logdir r",
            "c.yaml has its data in photos/train, which is not here (data.train.roots); give the folder",
        ),
        ("imaginaire --config bare.yaml", "bare.yaml names no data (data.train.roots); give the folder as --data.path DIR"),
        ("imaginaire --config bad.yaml", "bad.yaml: gen.type: got 'imaginaire.generators.gancraft'"),
        ("imaginaire mpirun train.py", "got 'mpirun'; begin with the flags, for several processes so: torchrun --nproc-per-node N"),
        ("import imaginaire", "no file given; usage: triptych import PROGRAM FILE --run DIR"),
        ("import imaginaire a b c --run r", "unexpected 'c'; usage: triptych import"),
        ("import imaginaire none.yaml --run r", "there is no file none.yaml"),
        ("import imaginaire bad.yaml --run r", "bad.yaml: gen.type: got 'imaginaire.generators.gancraft', expected one that ends in spade"),
        ("import imaginaire c.yaml --run r --flags=x", "--flags: a YAML file of imaginaire says it all: leave it out"),
        ("import imaginaire c.yaml --run r --processes 0", "--processes: got 0, expected at least 1"),
        ("import imaginaire c.yaml --run r --processes 1.5", "--processes: got 1.5, expected a whole number"),
        ("import imaginaire c.yaml --run r --processes nan", "--processes: got nan, expected a whole number"),
        ("import imaginaire c.yaml --run r --processes 1e400", "--processes: got inf, expected a whole number"),
        ("import imaginaire c.yaml --run r --processes x", "--processes: got 'x', expected a whole number"),
        ("import imaginaire c.yaml --run r --data nowhere", "nowhere: does not exist"),
        ("import imaginaire c.yaml c.yaml --run r", "c.yaml is damaged, or not a file of PyTorch's weights"),
        ("import glow c.yaml --run r --data x", "--data: goes with imaginaire, not with glow: leave it out"),
        ("import glow c.yaml --run r --processes 2", "--processes: goes with imaginaire, not with glow: leave it out"),
        (
            "import imaginair c.yaml --run r",
            "unknown program 'imaginair', expected guided-diffusion, improved-diffusion, glow, imaginaire, nvidia, diffusers, sit or dit",
        ),
    ],
)
def test_mistakes(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    written(Path("c.yaml"), short())
    written(Path("bad.yaml"), changed(short(), {"gen": {"type": "imaginaire.generators.gancraft"}}))
    written(Path("bare.yaml"), changed(short(), {"data": {"train": {"roots": None}}}))
    assert failed(words, capsys).startswith(line)
    assert not Path("r").exists() and not Path("logs").exists()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["imaginaire", "--help"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("usage: triptych imaginaire ") and all(f"--{flag}" in page for flag in FLAGS)
    assert main(["imaginaire"]) == 2
    assert import_.configure(["imaginaire", "c.yaml", "w.pt", "--run", "r"]).checkpoint == "w.pt"


def saved(values: dict[str, Any]) -> None:
    experiment = read_experiment(YamlFile(values))
    models = [seeded_build(experiment.model, experiment.data.spec, seed=seed) for seed in (1, 2)]
    torch.save(checkpoint(*models), "w.pt")


@pytest.mark.slow
def test_from_a_file_to_a_trained_run(capsys: pytest.CaptureFixture[str]) -> None:
    """With the original's words alone; the printed commands are the ones that ran, and unknown settings are named."""
    for part in ("train", "val"):
        for domain in "ab":
            photographed(Path(f"photos/{part}/images_{domain}"), 4, side=40)
    written(Path("c.yaml"), short(los_weight=3))
    words = "imaginaire train.py --config c.yaml --logdir r --num_workers 0 --train.sample-count 0 --train.validate-images 0"
    assert main(words.split()) == 0
    shown = capsys.readouterr()
    printed = [line for line in shown.out.splitlines() if line.startswith("triptych ")]
    assert printed[0] == "triptych import imaginaire c.yaml --run r" and printed[1].startswith("triptych train r --train.seed 2 ")
    assert "triptych: warning: unknown setting los_weight is not used" in shown.err
    assert "train it: triptych train r" in shown.out
    run = open_run("r")
    assert run.checkpoints() == [4] and (run.config.train.seed, run.config.train.ema_rates) == (2, (0.9999,))
    assert main(f"{words} --train.total-images 6".split()) == 0
    assert open_run("r").checkpoints()[-1] == 6
    assert "its own settings" in capsys.readouterr().err


def test_import_with_weights(capsys: pytest.CaptureFixture[str]) -> None:
    values = small("pix2pixHD")
    written(Path("c.yaml"), values)
    saved(values)
    assert main(["import", "imaginaire", "c.yaml", "w.pt", "--run", "r"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "the state of its optimizers is not taken: they begin anew" in shown
    assert "its moving average is the run's ema-0.999, and is used unless --weights raw is given" in shown
    assert shown[-2:] == ["r: Pix2PixHD, 64x128, no classes", "translate with it: triptych translate r INPUT --out DIR"]
    log = Path("r/log.txt").read_text()
    assert "imported from w.pt (imaginaire, SHA-256 " in log and "--config c.yaml" in log
