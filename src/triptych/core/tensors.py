"""Reading files of safetensors."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load, load_file
from torch import Tensor


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU. Raises OSError and SafetensorError."""
    try:
        str(path).encode()
    except UnicodeEncodeError:  # safetensors opens a file by its name in UTF-8, and this one has other bytes
        return load(path.read_bytes())
    return load_file(path)
