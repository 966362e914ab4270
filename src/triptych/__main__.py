"""The command `triptych`, and `python -m triptych`. It is imported within: Ctrl-C is one line then too."""

from __future__ import annotations

import sys


def main() -> int:
    """The exit code of the process's command line."""
    try:
        from triptych.cli.main import main as command

        return command()
    except KeyboardInterrupt:
        from triptych.cli.output import show
        from triptych.cli.processes import is_first_process

        if is_first_process():
            show("triptych: interrupted", error=True)
        return 130  # as EXIT_INTERRUPTED, whose module may not have been imported


if __name__ == "__main__":
    sys.exit(main())
