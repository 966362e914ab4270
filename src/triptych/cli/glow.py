"""`triptych glow`: the command line of openai/glow's train.py, translated into commands of Triptych, which are run.

Its flags are taken word for word, with the original's defaults. What they become is printed before it runs, so that the next time it can
be given as it is. A flag that has no meaning any more is named with what replaced it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triptych.cli.originals import Commands, import_commands, nearest_recipe, note, run_script, weights_to_begin
from triptych.cli.processes import num_processes
from triptych.core.errors import ConfigError
from triptych.interop.glow.flags import FLAGS, TrainFlags, read_flags, words

USAGE = """usage: triptych glow [train.py] --flag value ...

Takes the command line of openai/glow's train.py, prints the equivalent commands of Triptych and runs them. The run is in --logdir (./logs);
the same command goes on with it. --data_dir is the folder of the images: nothing is downloaded.

  triptych glow --help    list the flags

example: triptych glow --problem cifar10 --data_dir ./cifar-10-batches-bin --depth 8 --width 128 --flow_coupling 1 --learntop"""

_SEVERAL = "torchrun --nproc-per-node N -m -- triptych glow"
_REPLACED = {
    "fmap": "files are read by --data.workers processes",
    "pmap": "files are read by --data.workers processes",
    "n_batch_test": "validation takes the batch of the training (the original never read it)",
    "n_sample": "--train.sample-count is the number of samples (the original never read it)",
}


def main(arguments: Sequence[str]) -> int:
    """The exit code of the last command that ran."""
    return run_script(arguments, usage=USAGE, flags=FLAGS, several=_SEVERAL, read=read, commands=commands)


def read(arguments: Sequence[str]) -> TrainFlags:
    """The flags, checked and completed. Raises ConfigError for an unknown flag or value."""
    return read_flags(arguments, processes=num_processes())


def commands(flags: TrainFlags) -> Commands:
    """What the flags become."""
    for name, reason in _REPLACED.items():
        if name in flags.given:
            note(f"--{name} is not used: {reason}")
    yield from _inference(flags) if flags["inference"] else _training(flags)


def _training(flags: TrainFlags) -> Commands:
    """Perhaps the import of weights to begin with, and the training."""
    from triptych.interop.glow.commands import training

    recipe, settings = nearest_recipe(training(flags, note), families=("flows",))
    begin = yield from weights_to_begin("glow", flags, "restore_path", words=_model_words(flags))
    yield ["train", recipe, "--run", flags["logdir"], *begin, *settings]


def _model_words(flags: TrainFlags) -> str:
    return words({name: flags[name] for name in FLAGS if name in flags.given and FLAGS[name].group == "model"})


def _inference(flags: TrainFlags) -> Commands:
    """The test images as latents, and those as images again."""
    if num_processes() > 1:
        raise ConfigError("--inference", "it runs in one process; leave out torchrun")
    if flags.num_tested < 1:
        raise ConfigError("--n_test", f"got {flags['n_test']}, expected at least 1 with --inference, or -1 for the number of the problem")
    logdir = Path(flags["logdir"])
    if flags["restore_path"]:
        run = yield from import_commands("glow", flags["restore_path"], words=_model_words(flags), setting="--restore_path")
    elif (logdir / "config.json").is_file():
        run = logdir
    else:
        raise ConfigError("--restore_path", f"missing: --inference needs a checkpoint, or a run in --logdir, and {logdir} holds none")
    images = logdir / "test.npz"
    _write_test_images(flags, run, images)
    note(f"{images} holds the test images; the original's z.npy and x.npy are z.npz and x.npz beside it")
    yield ["encode", str(run), str(images), "--out", str(logdir / "z.npz")]
    yield ["encode", str(run), str(logdir / "z.npz"), "--decode", "--out", str(logdir / "x.npz")]


def _write_test_images(flags: TrainFlags, run: Path, out: Path) -> None:
    """Writes the first n_test held-out images, with their classes where the run has some, as `triptych encode` takes them."""
    import numpy as np

    from triptych.core.errors import DataError
    from triptych.core.files import explain
    from triptych.interop.glow.commands import data_config, images_folder
    from triptych.runs import open_run
    from triptych.runs.files import save_npz

    spec = open_run(run).spec
    settings = {"image_size": spec.image_size, "channels": spec.channels, "labels": "none" if spec.num_classes is None else "auto"}
    test = data_config(flags, note).updated(settings).open().validation
    if test is None:
        raise DataError(f"{images_folder(flags)}: holds no test images")
    chosen = np.arange(min(flags.num_tested, len(test)))
    arrays: dict[str, Any] = {"arr_0": test.batch(chosen).images}
    if test.labels is not None:
        arrays["arr_1"] = test.labels[chosen]
    try:
        save_npz(out, arrays)
    except OSError as error:
        raise DataError(f"cannot write {out}: {explain(error)}") from error
