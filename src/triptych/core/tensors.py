"""Reading files of safetensors."""

from __future__ import annotations

import os
import re
from pathlib import Path

from safetensors.torch import load, load_file
from torch import Tensor


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU. Raises OSError and SafetensorError."""
    try:
        str(path).encode()
    except UnicodeEncodeError:  # safetensors opens a file by its name in UTF-8, and this one has other bytes
        return load(path.read_bytes())
    try:
        return load_file(path)
    except RuntimeError as error:  # PyTorch maps the file, and of a refusal it says: "unable to open file <PATH> ...: REASON (NUMBER)"
        refusal = re.match(r"unable to .* file <.*\((\d+)\)$", str(error))
        if refusal is None:
            raise
        raise OSError(int(refusal[1]), os.strerror(int(refusal[1])), str(path)) from error
