"""`triptych imaginaire`: the command line of imaginaire's train.py, translated into commands of Triptych, which are run.

Its flags are taken word for word. They become an import of the YAML file (and of weights to begin with), and a training of the run that
this makes; both are printed before they run. A flag that has no meaning any more is named with what replaced it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from pathlib import Path

from triptych.cli.originals import Commands, note, run_script
from triptych.cli.processes import num_processes
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.files import explain, write_text
from triptych.engine.run_directory import RunDirectory, list_checkpoints, run_and_checkpoint
from triptych.interop.imaginaire.flags import FLAGS, TrainFlags, read_flags

USAGE = """usage: triptych imaginaire [train.py] --config FILE [--logdir DIR] --flag value ... [settings]

Takes the command line of imaginaire's train.py, prints the equivalent commands of Triptych and runs them. The run is in --logdir (else
logs/DATE_NAME); the same command with that --logdir goes on with it. Settings of `triptych train` may follow, such as
--data.path DIR (in place of the YAML file's roots) or --model.perceptual.weights vgg19.pth: nothing is downloaded.

  triptych imaginaire --help    list the flags

example: triptych imaginaire --config base128_bs4.yaml --logdir runs/spade --model.perceptual.weights vgg19-dcbb9e9d.pth"""

_SEVERAL = "torchrun --nproc-per-node N -m -- triptych imaginaire"
_IMPORT = "after `triptych import imaginaire FILE WEIGHTS --run RUN`"
_OTHER_SCRIPTS = {
    "inference.py": f"; for inference.py there is `triptych translate RUN IMAGES --out DIR`, {_IMPORT}",
    "evaluate.py": f"; for evaluate.py there is `triptych evaluate RUN`, {_IMPORT}",
}
_REPLACED = {
    "local_rank": "torchrun tells each process its own",
    "use_jit": "networks are compiled by --train.compile",
    "single_gpu": "without torchrun there is one process",
}


def main(arguments: Sequence[str]) -> int:
    """The exit code of the last command that ran."""
    return run_script(arguments, usage=USAGE, flags=FLAGS, several=_SEVERAL, read=read_flags, commands=commands, instead=_OTHER_SCRIPTS)


def commands(flags: TrainFlags) -> Commands:
    """What the flags become."""
    for name, reason in _REPLACED.items():
        if name in flags.given:
            note(f"--{name} is not used: {reason}")
    logdir = Path(flags["logdir"] or f"logs/{time.strftime('%Y_%m%d_%H%M_%S')}_{Path(flags['config']).stem}")
    imported = resumed = False
    if (logdir / "config.json").is_file():
        from triptych.runs.interchange import settings_alone

        directory = RunDirectory(logdir)
        imported = not settings_alone(directory)
        resumed = imported and (directory.metrics_path.exists() or max(list_checkpoints(directory.checkpoints)) > 0)
    if resumed and flags["resume"] == "0":
        raise ConfigError("--resume", f"got 0, but {logdir} holds a run; give another --logdir")
    begin: list[str] = []
    if resumed:
        note(f"{logdir} holds a run: it goes on with its own settings, and the YAML file is not read again")
        kept = {
            "checkpoint": "the run goes on from its own weights",
            "randomized_seed": "the run keeps its seed",
            "wandb_id": "the run keeps its own",
        }
        for name, reason in kept.items():
            if flags[name]:
                note(f"--{name} is not used: {reason}")
    elif imported:
        note(f"{logdir} has the weights of an import before, and was not trained yet: it begins")
        _note_wandb_id(flags, logdir)
    else:
        begin = yield from _imported(flags, logdir)
    yield ["train", str(logdir), *begin, *flags.training(note, resumed=resumed)]


def _imported(flags: TrainFlags, logdir: Path) -> Generator[list[str], None, list[str]]:
    """Yields the import of the file and perhaps of weights; returns what the training has to be told of weights in a run."""
    config, checkpoint = flags["config"], flags["checkpoint"]
    words, begin = ["import", "imaginaire", config], []
    if checkpoint and (run_and_checkpoint(checkpoint)[0] / "config.json").is_file():
        begin = ["--init-from", checkpoint]
    elif checkpoint:
        if not Path(checkpoint).is_file():
            raise CheckpointError(f"there is no checkpoint {checkpoint}")
        words.append(checkpoint)
    if checkpoint and flags["resume"] == "1":
        note("--resume 1 gives the weights alone: the optimizers and the count of images begin anew")
    words += ["--run", str(logdir)]
    if flags.data_path is not None:
        words += ["--data", flags.data_path]
    elif Path(config).is_file():  # before a run is made that could not be trained
        from triptych.interop.imaginaire.importer import check_data

        check_data(Path(config))
    if num_processes() > 1:
        words += ["--processes", str(num_processes())]
    yield words
    _note_wandb_id(flags, logdir)  # of a run that is there
    return begin


def _note_wandb_id(flags: TrainFlags, logdir: Path) -> None:
    """Writes the id that was given, if one was, into the run."""
    if not flags["wandb_id"]:
        return
    directory = RunDirectory(logdir)
    directory.create()
    try:
        write_text(directory.wandb_id_path, f"{flags['wandb_id']}\n")
    except OSError as error:
        raise CheckpointError(f"cannot write {directory.wandb_id_path}: {explain(error)}") from error
