"""The command `triptych`: finds the verb, imports it alone, and turns errors into one line and an exit code.

Nothing heavy is imported here, so that help and spelling errors come at once.
"""

from __future__ import annotations

import errno
import importlib
import itertools
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from triptych import __version__
from triptych.cli.output import show, show_page
from triptych.cli.processes import is_first_here, is_first_process, is_launched
from triptych.core.errors import ConfigError, RunError, Stopped, UserError, one_line
from triptych.core.memory import is_out_of_memory

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE
_AGAIN_SECONDS = 0.1
_OF_THE_PLACE = {
    errno.ENAMETOOLONG: "",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "; give another place, or change who may use this one"),
    errno.EROFS: "; give another place",
}
"""Errors of the system that the user can mend, and what to do about each."""


@dataclass(frozen=True)
class Verb:
    """A sub-command: the module whose `main(arguments)` runs it, and its line of help."""

    module: str
    usage: str
    summary: str


VERBS = {
    "train": Verb("triptych.cli.train", "RECIPE [--run DIR] [settings]", "train a recipe; the same command again goes on with the run"),
    "plan": Verb("triptych.cli.plan", "RECIPE [settings as for train] [--json]", "measure what a run will take, before it begins"),
    "launch": Verb("triptych.cli.launch", "slurm|kubernetes RECIPE [settings]", "write, and submit, the job of a training for a cluster"),
    "init": Verb("triptych.cli.init", "IMAGES [--hours 6] [--family FAMILY]", "choose a recipe and settings for images and hours"),
    "sample": Verb("triptych.cli.sample", "RUN [--count N] [--out FILE]", "draw images from a trained run"),
    "average": Verb("triptych.cli.average", "RUN --length LENGTH [--at IMAGES]", "weights of an average of any length, out of snapshots"),
    "translate": Verb("triptych.cli.translate", "RUN INPUT [--style IMAGES] [--out DIR]", "make images from other images or from maps"),
    "evaluate": Verb("triptych.cli.evaluate", "RUN_OR_IMAGES [--reference IMAGES] [--metrics LIST]", "measure a run, or images"),
    "import": Verb("triptych.cli.import_", "PROGRAM FILE --run DIR [--flags ...]", "make a run of another program's weights"),
    "export": Verb("triptych.cli.export", "RUN --to PROGRAM --out PATH", "write a run's weights for another program"),
    "guided-diffusion": Verb("triptych.cli.guided_diffusion", "SCRIPT --flag value ...", "run a command line of guided-diffusion"),
    "glow": Verb("triptych.cli.glow", "--flag value ...", "run a command line of openai/glow's train.py"),
    "imaginaire": Verb("triptych.cli.imaginaire", "--config FILE --flag value ...", "run a command line of imaginaire's train.py"),
    "encode": Verb("triptych.cli.encode", "RUN IMAGES [--out FILE.npz] [--decode]", "turn images into a run's latents and back"),
    "report": Verb("triptych.cli.report", "RUN [--out FILE.html]", "write the page of a run anew: samples, curves, figures, what happened"),
    "compare": Verb("triptych.cli.compare", "RUN RUN ... --out FILE.html", "set runs side by side on one page"),
    "data": Verb("triptych.cli.data", "doctor|stats|encode|show|pack IMAGES", "faults of images; their statistics and latents; pack them"),
    "runs": Verb("triptych.cli.runs", "[DIR | RUN]", "list the runs in a folder, or the checkpoints and pictures of one"),
    "recipes": Verb("triptych.cli.recipes", "[RECIPE]", "list the recipes, or describe one"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the command line `arguments` (by default those of the process).

    0: done, or a training that was interrupted and saved; 1: the run failed; 2: the user gave something that cannot be used; 130:
    interrupted otherwise.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if words[:1] != ["imaginaire"]:  # which has a flag of that name too
        words = [argument for argument in words if argument != "--debug"]
    warnings.showwarning = lambda message, *_, **__: show(f"triptych: warning: {message}", error=True)
    _open_closed_streams()
    try:
        try:
            with _failing_together(), _interruptible():
                code = _dispatch(words)
        except SystemExit as leaving:  # tyro has printed a page of help
            code = int(leaving.code or 0)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _fail(error, EXIT_USER_ERROR, debug=debug)
    except RunError as error:
        return _fail(error, EXIT_FAILED, debug=debug)
    except KeyboardInterrupt as error:
        if is_first_process():
            show(f"triptych: {str(error) or 'interrupted'}", error=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more on exit: into nothing, or it would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except MemoryError as error:
        return _fail(_out_of_memory(error), EXIT_FAILED, debug=debug)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return _fail(_out_of_memory(error), EXIT_FAILED, debug=debug)
    except OSError as error:
        if error.errno not in _OF_THE_PLACE:
            return _fail(error, EXIT_FAILED, debug=debug)
        return _fail(_of_the_place(error), EXIT_USER_ERROR, debug=debug)


def _open_closed_streams() -> None:
    """Gives standard output and error, where the shell closed them (>&-), to the null device: else Python has None there."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (for as long as the process lives)


def _of_the_place(error: OSError) -> UserError:
    """What is said of a place that the system keeps from the user."""
    places = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes | os.PathLike)]
    said = f"{' and '.join(places)}: {error.strerror}" if places else str(error.strerror)
    return UserError(f"{said}{_OF_THE_PLACE[error.errno or 0]}").with_traceback(error.__traceback__)


def _out_of_memory(error: Exception) -> RunError:
    said = f" ({one_line(error)})" if str(error) else ""
    return RunError(f"not enough memory{said}: ask for less at once").with_traceback(error.__traceback__)


@contextmanager
def _failing_together() -> Iterator[None]:
    """Within it the error of one of several processes ends all of them, with its words. Without torchrun it does nothing."""
    if not is_launched():
        yield
        return
    from triptych.core.parent import end_with

    end_with(os.getppid())  # before PyTorch is imported, which takes seconds
    try:
        yield
    except (Exception, KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, as soon as one has ended: this one ends too, with a code of its own
        if "triptych.engine.distributed" not in sys.modules:
            raise
        from triptych.engine.distributed import failing_together

        with failing_together():
            raise


@contextmanager
def _interruptible() -> Iterator[None]:
    """Within it SIGTERM ends a verb as Ctrl-C does: files are closed, what is half written is removed. Training has its own way.

    While NumPy is imported both come again a little later: where PyTorch imports it, it swallows the interruption and goes on with half
    of NumPy.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _is_importing_numpy(frame):
            again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        raise Stopped("interrupted by SIGTERM" if number == signal.SIGTERM else "interrupted")

    caught = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started this wants it to be ignored
        caught.append(signal.SIGINT)
    before = {number: signal.signal(number, interrupt) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_importing_numpy(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and str(frame.f_locals.get("name")).partition(".")[0] == "numpy":
            return True
        frame = frame.f_back
    return False


def _dispatch(words: list[str]) -> int:
    if not words:
        show_page(_help(), error=True)
        return EXIT_USER_ERROR
    name, rest = words[0], words[1:]
    if name == "help" and rest:
        name, rest = rest[0], [*rest[1:], "--help"]
    if name in ("-h", "--help", "help"):
        show_page(_help())
        return 0
    if name == "--version":
        show(f"triptych {__version__}")
        return 0
    if name not in VERBS:
        raise _unknown(name)
    _refuse_blanks(rest)
    return importlib.import_module(VERBS[name].module).main(rest)


def _refuse_blanks(words: Sequence[str]) -> None:
    """Raises ConfigError for a word of blanks alone: no file or folder is meant by it, and one of that name would be made."""
    for before, word in itertools.pairwise(["", *words]):
        flag, _, value = word.partition("=") if word.startswith("-") else (before, "", word)
        if value.isspace():
            raise ConfigError(flag if flag.startswith("--") else "", f"got {value!r}, expected more than blanks")


def _unknown(name: str) -> ConfigError:
    from triptych.cli.synonyms import verb_hint

    what = "option" if name.startswith("-") else "command"
    return ConfigError("", f'unknown {what} "{name}"{verb_hint(name, VERBS)} (triptych --help lists the commands)')


def _fail(error: Exception, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    if _is_told(error):
        line = " ".join(str(error).split()) or type(error).__name__
        show(f"triptych: error: {line}", error=True)
    if is_launched():
        # The threads of the group that broke may still hold tensors: to let go of one while Python shuts down aborts the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _is_told(error: Exception) -> bool:
    """Whether this process says it: else another one has."""
    if "triptych.engine.distributed" not in sys.modules:  # what goes wrong so early does in all processes of this machine
        return getattr(error, "first", is_first_here())
    from triptych.engine.distributed import told_elsewhere

    return not told_elsewhere(error)


def _help() -> str:
    width = max(len(name) for name in VERBS) + 2
    verbs = "\n".join(f"  {name:{width}}{verb.summary}\n  {'':{width}}triptych {name} {verb.usage}" for name, verb in VERBS.items())
    return f"""usage: triptych COMMAND ...

Trains, samples and evaluates image generators: normalizing flows, GANs and diffusion models.

commands:
{verbs}

options:
  --help     this page; after a command, its own
  --version  the version
  --debug    show where in the code an error arose"""
