"""Which of the processes that torchrun started this is, before PyTorch is imported."""

from __future__ import annotations

import os


def is_first_process() -> bool:
    """Whether this process prints for all of them."""
    return os.environ.get("RANK", "0") == "0"


def is_first_here() -> bool:
    """Whether this process speaks for those of its machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def num_processes() -> int:
    """How many processes work together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_launched() -> bool:
    """Whether torchrun started this process; without it torch.distributed is not used."""
    return "TORCHELASTIC_RUN_ID" in os.environ
