"""Which resolutions of StyleGAN2 follow the precision of the training."""

from __future__ import annotations

from dataclasses import replace

import torch

from triptych.core.batch import DataSpec
from triptych.core.rng import Rng
from triptych.gans.stylegan2 import StyleGAN2Config
from triptych.nn.precision import stage_precision


def test_stages_of_low_resolution_are_float32_under_autocast() -> None:
    """Half precision reaches the highest resolutions only, and leaves the images as they are but for its rounding."""
    torch.manual_seed(0)
    config = replace(StyleGAN2Config().shrunk(), generator=replace(StyleGAN2Config().generator.shrunk(), half_stages=1))
    model = config.build(DataSpec(image_size=16, channels=3))
    seen: dict[str, torch.dtype] = {}
    for side in (4, 8, 16):
        block = model.generator.get_submodule(f"synthesis.b{side}")
        block.register_forward_hook(lambda block, inputs, outputs, side=side: seen.update({f"G{side}": outputs[0].dtype}))
    rng = Rng(0, ("x",), torch.arange(2))
    exact = model.generated(None, rng)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.generated(None, rng)
        with stage_precision(exact, half=False) as x:
            assert x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    assert seen == {"G4": torch.float32, "G8": torch.float32, "G16": torch.bfloat16}
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.05 * exact.abs().max()
