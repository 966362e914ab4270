"""Arithmetic of the networks: float32, or bf16 or fp16 by autocast, fp16 with a loss scale."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

from triptych.core.errors import ConfigError, RunError
from triptych.engine.config import TrainConfig

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, *, device: torch.device, keeps_weights: bool = True) -> AbstractContextManager:
    """The context in which losses and samplers run the networks; raises ConfigError for a precision that there is not.

    `keeps_weights`: the weights that it has rounded are kept until its end, for those that are used several times.
    """
    if precision != "float32" and precision not in _DTYPES:
        raise ConfigError("precision", f"got {precision!r}, expected one of {', '.join(('float32', *_DTYPES))}")
    return nullcontext() if precision == "float32" else torch.autocast(device.type, dtype=_DTYPES[precision], cache_enabled=keeps_weights)


def native_precision(device: torch.device) -> Literal["bf16", "float32"]:
    """The precision of train.precision auto: bf16 where the device multiplies it natively; elsewhere float32 is faster."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float32"
    # Earlier versions of PyTorch do not say what a CPU can do.
    can = getattr(torch.cpu, "get_capabilities", dict)() if device.type == "cpu" else {}
    return "bf16" if can.get("amx_bf16") or can.get("avx512_bf16") else "float32"


class LossScale:
    """guided-diffusion's loss scale 2^s (s += growth after a good step, s -= 1 after an overflow), with a floor.

    Disabled (scale 1, every step good) unless the precision is fp16.
    """

    def __init__(self, settings: TrainConfig) -> None:
        self.enabled = settings.precision == "fp16"
        self.log2_scale = torch.tensor(settings.loss_scale, dtype=torch.float64).log2().item()
        self._growth, self._floor = settings.loss_scale_growth, settings.loss_scale_floor

    @property
    def scale(self) -> float:
        """The factor that the loss is multiplied by."""
        return 2.0**self.log2_scale if self.enabled else 1.0

    def unscale(self, gradients: list[Tensor]) -> None:
        """Divides the gradients by the scale."""
        if self.enabled:
            torch._foreach_mul_(gradients, 1 / self.scale)  # pyright: ignore[reportPrivateImportUsage]

    def accept(self, gradient_norm: Tensor) -> bool:
        """Whether the step may be taken; moves the scale. Raises RunError when the scale falls below its floor."""
        if not self.enabled:
            return True
        if torch.isfinite(gradient_norm):
            self.log2_scale += self._growth
            return True
        self.log2_scale -= 1
        if self.scale < self._floor:
            raise RunError(
                f"the fp16 loss scale fell below its floor ({self._floor:g}): the gradients overflow at every scale; "
                "use --train.precision bf16 or float32, or a lower --optim.learning-rate"
            )
        return False
