"""`triptych launch slurm`: the file of a job, what it does with what Slurm tells it, and what is refused before it is written."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.stored_run import begun
from tests.processes import _free_port, environment
from triptych.cli import launch
from triptych.cli.launch import plain_name
from triptych.cli.launch_slurm import seconds_of
from triptych.cli.main import main
from triptych.cli.train import base_and_settings, configure
from triptych.core.errors import ConfigError, UserError
from triptych.runs.slurm import STOPPED

EXPECTED = """\
#!/bin/bash
# Written by: triptych launch slurm adm-digits --run run --nodes 4 --gpus 8 --time 1-12 --train.batch-size=64 --cpus 16 --partition gpu
#SBATCH --job-name=run
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=16
#SBATCH --time=1-12
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH --chdir=FOLDER
#SBATCH --output=FOLDER/run/slurm-%j.out

# The first signal before the end goes on to the training, which saves and stops; a second one would end it at once.
asked= told= step=
tell() {
    asked=1
    if [[ -n $step && -z $told ]]; then
        told=1
        kill -USR1 "$step" 2>/dev/null || true
    fi
}
trap tell USR1 TERM

# Where the processes meet: the first machine, at a port of the job's own.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))
start=${SLURM_RESTART_COUNT:-0}
log=run/log.txt
before=$(stat -c %s "$log" 2>/dev/null || echo 0)

# The step gets the cores that the job has: since Slurm 22.05 it does not by itself.
if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
srun --kill-on-bad-exit=1 PYTHON -m triptych.cli.launch_agent run \\
    --nnodes 4 --nproc-per-node 8 --max-restarts 3 \\
    --rdzv-backend c10d --rdzv-endpoint "$head:$port" --rdzv-id "$SLURM_JOB_ID-$start" \\
    --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 --shutdown-timeout 300 \\
    -m -- triptych train adm-digits --run run --train.batch-size 64 --device cuda &
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(*words: str) -> str:
    """The file of a job."""
    assert main(["launch", "slurm", "adm-digits", "--run", "run", *words]) == 0
    return Path("run.sbatch").read_text()


def test_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(*["--nodes", "4", "--gpus", "8", "--time", "1-12", "--train.batch-size=64", "--cpus", "16", "--partition", "gpu"])
    assert text.startswith(EXPECTED.replace("FOLDER", str(tmp_path)).replace("PYTHON", sys.executable))
    assert subprocess.run(["bash", "-n", "run.sbatch"], check=False).returncode == 0
    assert "submit it: sbatch run.sbatch" in capsys.readouterr().out
    assert Path("run").is_dir()  # the job's output goes there
    from torch.distributed.run import get_args_parser

    command = re.search(r"triptych\.cli\.launch_agent run (.*?) &\n", text.replace("\\\n", ""), re.DOTALL)
    assert command is not None
    taken = get_args_parser().parse_args(command[1].replace('"', "").split())
    assert (taken.nnodes, taken.nproc_per_node, taken.shutdown_timeout, taken.training_script) == ("4", "8", 300, "triptych")
    base, rest = base_and_settings(taken.training_script_args[1:], usage="")
    options, config = configure(base, rest)
    assert options.run == "run" and config.train.batch_size == 64


def test_words_that_a_shell_would_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "it's 100%").mkdir()
    monkeypatch.chdir(tmp_path / "it's 100%")
    np.savez("a b.npz", arr_0=np.zeros((20, 16, 16, 1), np.uint8), arr_1=np.arange(20) % 10)
    words = ["--gpus", "0", "--processes", "2", "--data.path", "a b.npz", "--sbatch", "qos=long --comment='a \"b\"'"]
    text = written(*words, "--submit", "False")
    assert f'#SBATCH --output="{tmp_path}/it\'s 100%%/run/slurm-%j.out"' in text
    assert f'#SBATCH --chdir="{tmp_path}/it\'s 100%"' in text
    assert '#SBATCH --qos=long\n#SBATCH --comment="a \\"b\\""' in text
    assert "train adm-digits --run run --data.path 'a b.npz' &" in text and "--gpus-per-node" not in text
    assert subprocess.run(["bash", "-n", "run.sbatch"], check=False).returncode == 0


@pytest.mark.parametrize(("run", "name"), [("-fast run", "fast-run"), (".hidden", "hidden"), ("数字", "run"), ("v1.5_a", "v1.5_a")])
def test_the_name_of_a_job_is_no_option(run: str, name: str, tmp_path: Path) -> None:
    assert plain_name(tmp_path / run) == name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--train.batch-sise", "64"], 'unknown setting; did you mean "--train.batch-size"?'),
        (["--train.batch-size", "no"], "--train.batch-size: got 'no', expected a whole number"),
        (["--data.image-size", "0"], "--data.image-size: got 0, expected 1 to 65,536"),
        (["--data.path", "nowhere"], "nowhere: does not exist (data.path)"),
        (["--config", "nowhere.toml"], "there is no file 'nowhere.toml'"),
        (["--nodes", "0"], "--nodes: got 0, expected at least 1"),
        (["--gpus", "0"], "--processes: got None, expected a number, where there are no GPUs"),
        (["--time", "4h"], "--time: got '4h', expected days-hours"),
        (["--time", "0"], "--time: got '0', expected more than 60 seconds, for the training is told before its end"),
        (["--time", "10", "--notice", "600"], "--notice: got 600, expected 1 to 540 seconds, of a job of 10"),
        (["--time", "2-0", "--notice", "65536"], "--notice: got 65536, expected 1 to 65,535 seconds, of a job of 2-0"),
        (["--sbatch", "qos=long 7"], "--sbatch: got 'qos=long 7', expected options of sbatch in one text"),
        (["--sbatch", "qos='x"], "whose quotation marks do not close"),
        (["--run", "."], "--run: got '.', which has no name of its own; give a folder for the run, such as runs/NAME"),
        (["--run", "a\nb"], "expected text of one line"),
        (["--nodes", "100", "--gpus", "8"], "expected at least one image for each of 800 processes (--nodes 100)"),
        (["--out", "no/such/folder/x"], "--out: cannot write"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_written(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "slurm", "adm-digits", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(Path().rglob("*.sbatch"))


def tree() -> dict[str, bytes]:
    """All files and folders here."""
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in Path().rglob("*")}


WATCHED = ["--train.evaluate-every", "1000"]
REFUSED = [
    (["--run", "foreign"], "foreign is not a run: it has no config.json but holds thesis.tex; choose a new or an empty directory"),
    (["--run", "file"], "cannot use file as a run directory: a file is in the way"),
    (["--run", "file/run"], "cannot use file/run as a run directory: a file is in the way"),
    (["--init-from", "nowhere"], "no run in nowhere: there is no config.json"),
    (["--init-from", "begun"], "begun has no checkpoint yet; train it first"),
    (["--data.path", "empty"], "empty: no images to train on"),
    (["--data.path", "file"], "file: "),
    (["--data.path", "empty", "--data.source", "nothing"], "--data.source: got 'nothing'"),
    (
        ["--run", "begun", "--model.network.num-channels", "64"],
        "--model.network.num-channels: got 64, but the run in begun",
    ),
    (["--run", "begun", "--data.path", "other.npz"], "data: the images are not those of this run"),
    (["--data.skip", "nowhere.json"], "nowhere.json"),
    (["--data.path", "nosuch://b/x.zip"], "nosuch://b/x.zip: fsspec knows no nosuch://; expected s3://"),
    (["--data.path", "https://127.0.0.1:9/x.zip", "--data.source", "folder"], "--data.source: got 'folder', but https://127.0.0.1:9/x.zip"),
    ([*WATCHED, "--train.evaluate-features", "inception"], "--train.evaluate-features: inception needs the file pt_inception"),
    ([*WATCHED, "--train.evaluate-metrics", "kidd"], '--train.evaluate-metrics: unknown metric "kidd"; did you mean "kid"?'),
    ([*WATCHED, "--train.evaluate-split", "validation", "--data.validation-fraction", "0"], "--train.evaluate-split: got validation, but"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_the_training_would_refuse_is_refused_here(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the same line, before anything is written."""
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))  # without weights of networks
    for name in ("foreign", "empty"):
        Path(name).mkdir()
    Path("foreign/thesis.tex").touch()
    Path("file").write_text("not a folder")
    np.savez("other.npz", arr_0=np.zeros((16, 32, 32, 3), np.uint8))
    begun(Path("begun"))
    before = tree()
    assert main(["launch", "slurm", "adm-digits", *words]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"triptych: error: {said}") and line.count("\n") == 1
    assert tree() == before
    assert main(["train", "adm-digits", *words, "--device", "cpu"]) == 2
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(("name", "flag"), [("device", "--device"), ("train.batch_size", "--train.batch-size")])
def test_mistakes_are_named_as_the_training_names_them(
    name: str, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **settings: Any) -> None:
        raise ConfigError(name, "not this one")

    monkeypatch.setattr("triptych.runs.beforehand.refuse_at_start", refuse)
    assert main(["launch", "slurm", "adm-digits"]) == 2
    assert capsys.readouterr().err == f"triptych: error: {flag}: not this one\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "3", "--train.shard", "full"], "--train.batch-size: got 64, expected a multiple of the 3 processes"),
        (["--nodes", "2", "--gpus", "3", "--train.shard", "hybrid"], "--train.batch-size: got 64, expected a multiple of the 6 processes"),
        (["--nodes", "4", "--train.shard", "hybrid"], "--train.shard-size: got 1, expected at least 2"),
        (
            ["--nodes", "4", "--train.shard", "hybrid", "--train.shard-size", "3"],
            "--train.shard-size: got 3, expected at",
        ),
    ],
)
def test_numbers_of_processes_that_cannot_divide_a_model(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "slurm", "adm-digits", "--run", "run", "--train.batch-size", "64", *words]) == 2
    assert capsys.readouterr().err.startswith(f"triptych: error: {said}") and not list(Path().iterdir())
    written("--nodes", "2", "--gpus", "4", "--train.shard", "hybrid", "--train.batch-size", "64")


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_precision_of_a_run_is_not_that_of_the_machine_where_its_job_is_written(precision: str) -> None:
    begun(Path("run"), precision=precision)
    before = tree()
    written("--train.total-images", "100_000_000")
    assert {name: content for name, content in tree().items() if name != "run.sbatch"} == before


def test_networks_that_a_loss_needs(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("photos.npz", arr_0=np.zeros((20, 32, 32, 3), np.uint8))
    words = ["autoencoder-photos", "--run", "run", "--data.path", "photos.npz", "--data.image-size", "32"]
    assert main(["launch", "slurm", *words]) == 2
    said = "--model.perceptual.weights: missing: give the file of weights of the perceptual network"
    assert capsys.readouterr().err.startswith(f"triptych: error: {said}") and not Path("run").exists()


def test_data_at_an_address_are_left_to_the_machines_that_train(capsys: pytest.CaptureFixture[str]) -> None:
    images = ["--data.path", "https://127.0.0.1:9/images.zip", "--data.image-size", "16"]
    written(*images)
    begun(Path("run"))
    assert main(["launch", "slurm", "adm-digits", "--run", "run", *images, "--model.network.num-channels", "64"]) == 2
    assert "--model.network.num-channels: got 64, but the run in run was started with" in capsys.readouterr().err


@pytest.mark.parametrize("run", ["new", "begun"])
def test_what_evaluations_of_data_at_an_address_need(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The network and the metrics, for which no server need be asked."""
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    begun(Path("begun"))
    words = ["--run", run, "--data.path", "https://127.0.0.1:9/images.zip", "--data.image-size", "16", *WATCHED]
    assert main(["launch", "slurm", "adm-digits", *words, "--train.evaluate-features", "inception"]) == 2
    assert "--train.evaluate-features: inception needs the file pt_inception" in capsys.readouterr().err
    assert main(["launch", "slurm", "adm-digits", *words, "--train.evaluate-features", "random"]) == 0


def test_an_address_that_this_python_cannot_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's nodes have the same one."""
    words = ["launch", "slurm", "adm-digits", "--run", "run", "--data.path", "https://127.0.0.1:9/x.zip"]
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert main(words) == 2
    said = 'https://127.0.0.1:9/x.zip: to read https:// needs fsspec: pip install "triptych[remote]"'
    assert capsys.readouterr().err == f"triptych: error: {said}\n" and not Path("run").exists()


@pytest.mark.parametrize("recipe", ["pix2pixhd-cityscapes", "munit-summer2winter-hd", "funit-animal-faces", "vid2vid-cityscapes"])
def test_data_that_are_read_on_this_machine_alone(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "slurm", recipe, "--run", "run", "--data.path", "https://127.0.0.1:9/x"]) == 2
    assert "https://127.0.0.1:9/x: an address, where a path on this machine is expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["slrum", "adm-digits"], "got 'slrum', expected slurm or kubernetes; did you mean \"slurm\"?"),
        (["slurm"], "no recipe given"),
        (["slurm", "adm-digitz"], "adm-digits"),
    ],
)
def test_what_is_launched_is_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("10", 600),
        ("10:30", 630),
        ("4:00:00", 14_400),
        ("1-0", 86_400),
        ("1-2:3", 93_780),
        ("1-2:3:4", 93_784),
        ("", 0),
        ("1-", 0),
        ("x", 0),
    ],
)
def test_times_of_slurm(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_job_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(launch.shutil, "which", lambda name: None)
    assert main(["launch", "slurm", "adm-digits", "--run", "run", "--submit"]) == 2
    assert "there is no sbatch on this machine; submit run.sbatch where there is one" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    program(tmp_path / "bin", "sbatch", 'echo "$@" > given; echo "Submitted batch job 7"')
    written("--submit")
    assert Path("given").read_text() == "run.sbatch\n" and "Submitted batch job 7" in capsys.readouterr().out
    program(tmp_path / "bin", "sbatch", 'echo "sbatch: error: invalid partition" >&2; echo "more" >&2; exit 1')
    assert main(["launch", "slurm", "adm-digits", "--run", "run", "--submit"]) == 2
    assert capsys.readouterr().err.endswith("sbatch did not take run.sbatch: sbatch: error: invalid partition more\n")


SAVED = f"echo 'stopped by SIGTERM at 64 images {STOPPED}' >> run/log.txt"
STOPPED_IN_IT = "kill -USR1 $PPID; sleep 5 &> /dev/null & wait"  # the pipe of the job would wait for its end


@pytest.mark.parametrize(
    ("training", "state", "before", "code", "requeued"),
    [
        ("exit 0", "RUNNING", "", 0, False),
        ("exit 1", "RUNNING", "", 1, False),
        (f"{SAVED}; exit 1", "RUNNING", "", 0, True),
        (f"{SAVED}; exit 1", "CANCELLED", "", 1, False),
        (f"{SAVED}; exit 1", "COMPLETING", "", 1, False),
        ("exit 1", "RUNNING", SAVED, 1, False),  # that was the start before
        ("exit 1", "RUNNING PreemptTime=2026-11-23T00:00:00", "", 0, True),  # before there was anything to save
        ("exit 0", "RUNNING PreemptTime=2026-11-23T00:00:00", "", 0, False),  # finished all the same
        (f"trap 'sleep 0.1; exit 1' USR1; {STOPPED_IN_IT}", "RUNNING", "", 0, True),
        (f"trap '{SAVED.replace(chr(39), '')}; exit 1' USR1; {STOPPED_IN_IT}", "RUNNING", "", 0, True),
    ],
)
def test_what_was_stopped_is_queued_again(tmp_path: Path, training: str, state: str, before: str, code: int, requeued: bool) -> None:
    written()
    if before:
        subprocess.run(["bash", "-c", before], check=True)
    bins = tmp_path / "bin"
    program(bins, "srun", f'echo "$@" > srun; trap "touch ended" EXIT; {training}')
    program(bins, "scontrol", f'[[ $1 == requeue && -e ended ]] && echo "$2" > requeued; echo "JobState={state}"')
    settings = {"PATH": f"{bins}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_RESTART_COUNT": "2"}
    done = subprocess.run(["bash", "run.sbatch"], env=settings, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, Path("requeued").exists()) == (code, requeued), done
    assert "--rdzv-id 7-2" in Path("srun").read_text() and f":{20_007} " in Path("srun").read_text()


@pytest.mark.slow
@pytest.mark.xdist_group("torchrun")
@pytest.mark.parametrize(
    ("training", "starts", "code"),
    [
        ("print('error: no such thing', file=sys.stderr); sys.exit(2)", 1, 2),
        ("os.makedirs('run/checkpoints/000000064', exist_ok=True); sys.exit(2)", 2, 2),  # once more, for it has got on
        ("sys.exit(1)", 4, 1),
    ],
)
def test_what_cannot_be_used_is_not_tried_again(tmp_path: Path, training: str, starts: int, code: int) -> None:
    """By the job's own command, with a training in the place of triptych's."""
    text = written("--gpus", "0", "--processes", "1")
    Path("triptych_stub.py").write_text(f"import os, sys\nopen('starts', 'a').write('0')\n{training}\n")
    Path("run.sbatch").write_text(text.replace("-m -- triptych train", "--monitor-interval 0.05 -m -- triptych_stub train"))
    program(tmp_path / "bin", "srun", 'shift; exec "$@"')
    program(tmp_path / "bin", "scontrol", '[[ $2 == hostnames ]] && echo 127.0.0.1; echo "JobState=RUNNING"')
    settings = {**environment(), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "SLURM_JOB_ID": str(_free_port() - 20_000)}
    settings |= {"SLURM_JOB_NODELIST": "n0", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{tmp_path}:{environment()['PYTHONPATH']}"}
    done = subprocess.run(["bash", "run.sbatch"], env=settings, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code and Path("starts").read_text() == "0" * starts, done
    assert f"(exit code {code})" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_controller_that_does_not_answer_at_once_is_asked_again(tmp_path: Path) -> None:
    written()
    bins = tmp_path / "bin"
    program(bins, "sleep", "exit 0")
    program(bins, "srun", f"{SAVED}; exit 1")
    once = 'if [[ ! -e failed-$1 ]]; then touch "failed-$1"; exit 1; fi'
    program(bins, "scontrol", f'[[ $2 == hostnames ]] && exit 0; {once}; [[ $1 == requeue ]] && touch requeued; echo "JobState=RUNNING"')
    settings = {"PATH": f"{bins}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n0"}
    done = subprocess.run(["bash", "run.sbatch"], env=settings, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and {"failed-show", "failed-requeue", "requeued"} <= {path.name for path in Path().iterdir()}, done


def test_a_run_that_is_called_like_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "slurm", "adm-digits", "--run=-fast"]) == 0
    assert "submit it: sbatch ./-fast.sbatch" in capsys.readouterr().out
    assert "log=./-fast/log.txt" in Path("-fast.sbatch").read_text()


@pytest.mark.parametrize("cores", [None, "16"])
def test_the_training_hears_one_signal_and_has_the_cores_of_the_job(tmp_path: Path, cores: str | None) -> None:
    """A second one would end it before it has saved."""
    written()
    bins = tmp_path / "bin"
    training = "trap 'echo heard >> signals' USR1; kill -USR1 $PPID; sleep 0.3; kill -TERM $PPID; sleep 0.3; kill -USR1 $PPID; sleep 0.3"
    program(bins, "srun", f"echo ${{SRUN_CPUS_PER_TASK:-none}} > cores; {training}; exit 1")
    program(bins, "scontrol", 'echo "JobState=RUNNING"')
    settings = {"PATH": f"{bins}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-3]"}
    settings |= {} if cores is None else {"SLURM_CPUS_PER_TASK": cores}
    done = subprocess.run(["bash", "run.sbatch"], env=settings, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and "queued again" in done.stdout, done
    assert Path("signals").read_text() == "heard\n" and Path("cores").read_text() == f"{cores or 'none'}\n"


def test_a_signal_before_the_training_starts_reaches_it(tmp_path: Path) -> None:
    written()
    bins = tmp_path / "bin"
    program(bins, "scontrol", 'if [[ $2 == hostnames ]]; then touch asked; sleep 0.5; fi; echo "JobState=RUNNING"')
    program(bins, "srun", "trap 'echo heard >> signals; exit 1' USR1; for k in {1..100}; do sleep 0.1; done")
    settings = {"PATH": f"{bins}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-3]"}
    with subprocess.Popen(["bash", "run.sbatch"], env=settings, stdout=subprocess.PIPE, text=True) as job:
        while not Path("asked").exists():
            time.sleep(0.01)
        job.send_signal(signal.SIGUSR1)
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 0 and "queued again" in said


def test_the_line_that_the_job_looks_for_is_that_of_the_log() -> None:
    training = (Path(launch.__file__).parents[1] / "runs" / "training.py").read_text()
    assert STOPPED in training


def test_a_file_that_is_there_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    first = written("--time", "60")
    assert written("--time", "60") == first and not Path("run.sbatch.bak").exists()
    Path("run.sbatch").write_text(first + "# mine\n")
    capsys.readouterr()
    written("--time", "90")
    assert "; the one before is run.sbatch.bak" in capsys.readouterr().out
    assert Path("run.sbatch.bak").read_text() == first + "# mine\n"
    written("--time", "120")
    assert "; the one before is run.sbatch.bak2" in capsys.readouterr().out
    assert Path("run.sbatch.bak").read_text() == first + "# mine\n"
    Path("run.sbatch").write_text("precious\n")
    assert main(["launch", "slurm", "adm-digits", "--run", "run"]) == 2
    assert "--out: run.sbatch is there, and triptych launch did not write it" in capsys.readouterr().err
    assert main(["launch", "slurm", "adm-digits", "--run", "other", "--out", "run.sbatch"]) == 2 and not Path("other").exists()
    assert Path("run.sbatch").read_text() == "precious\n"


def test_processes_go_before_gpus() -> None:
    """A machine may have more processes than GPUs, or less."""
    assert [launch.LaunchOptions(gpus=4, processes=processes).of_each_node for processes in (None, 2, 8)] == [4, 2, 8]
    with pytest.raises(ConfigError, match="^notice: got 0, expected at least 1"):
        launch.LaunchOptions(notice=0)


def test_a_batch_has_an_image_for_each_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a run in folders that are not there yet gets them."""
    batch = ["--data.source", "digits", "--train.batch-size", "8", "--gpus", "2", "--run", "deep/er/run"]
    assert main(["launch", "slurm", "adm-digits", *batch, "--nodes", "5"]) == 2
    assert "--train.batch-size: got 8, expected at least one image for each of 10 processes (--nodes 5)" in capsys.readouterr().err
    assert not (tmp_path / "deep").exists()
    assert main(["launch", "slurm", "adm-digits", *batch, "--nodes", "4"]) == 0
    assert (tmp_path / "deep/er/run").is_dir() and (tmp_path / "deep/er/run.sbatch").is_file()


@pytest.mark.parametrize(("script", "said"), [("echo out; echo why >&2; exit 1", "why"), ("echo out; exit 3", "out")])
def test_why_a_job_is_not_taken_is_on_either_stream(script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "sbatch"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(UserError, match=f"^sbatch did not take a.sbatch: {said}$"):
        launch.submitted(["sbatch", "a.sbatch"])
