"""Optical flow by OpenCV's DIS: "Fast Optical Flow using Dense Inverse Search", Kroeger et al. 2016, https://arxiv.org/abs/1603.03590.

OpenCV is an extra, `pip install "triptych[flow]"`. DIS works on a CPU, on grey images of 8 bits.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from triptych.core.errors import ConfigError
from triptych.core.images import to_uint8

_GREY = (0.299, 0.587, 0.114)
"""The shares of red, green and blue in brightness (ITU-R BT.601)."""


@torch.no_grad()
def inverse_search(target: Float[Tensor, "b c h w"], source: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2 h w"]:
    """The flow from each pixel of images in [-1, 1], grey or RGB, to where it is in the source; each pair by itself.

    Raises ConfigError where OpenCV is not there.
    """
    cv2 = opencv()
    search = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    pairs = zip(_grey(target), _grey(source), strict=True)
    flows = np.stack([search.calc(first, second, None) for first, second in pairs])
    return torch.from_numpy(flows).movedim(-1, 1).to(target)


def opencv() -> Any:
    """The module cv2. Raises ConfigError where it cannot be imported."""
    try:
        return importlib.import_module("cv2")
    except ImportError as error:
        raise ConfigError("teacher", 'got "dis", which needs OpenCV: pip install "triptych[flow]"; or take another teacher') from error


def _grey(images: Tensor) -> np.ndarray:
    """uint8 (b, h, w)."""
    if images.shape[1] == 3:
        images = (images * images.new_tensor(_GREY)[:, None, None]).sum(1, keepdim=True)
    return to_uint8(images).numpy()[..., 0]
