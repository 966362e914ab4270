"""`python -m triptych` is the command `triptych`."""

from __future__ import annotations

import sys

from triptych.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
