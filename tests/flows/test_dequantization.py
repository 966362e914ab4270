"""8-bit values, their levels, and the values of a density that stand for them."""

from __future__ import annotations

import math

import pytest
import torch

from triptych.flows.dequantization import Dequantization

VALUES = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)


@pytest.mark.parametrize("bits", [1, 5, 8])
@pytest.mark.parametrize("u", [0.0, 0.5, 0.999])
def test_values_are_within_their_levels_and_come_back(bits: int, u: float) -> None:
    quantized = Dequantization(bits, 256)
    x = quantized.of_values(VALUES, u, dtype=torch.float64)
    levels = [v // 2 ** (8 - bits) for v in range(256)]
    expected = [(q + u) / 2**bits - 0.5 for q in levels]
    torch.testing.assert_close(x.flatten(), torch.tensor(expected, dtype=torch.float64), atol=1e-15, rtol=0)
    assert torch.equal(quantized.of_images(VALUES.double() / 127.5 - 1, u, dtype=torch.float64), x)
    back, edges = ((quantized.images(x.float(), hint="") + 1) * 127.5).flatten(), [q * 2 ** (8 - bits) for q in levels]
    assert back.floor().tolist() == edges  # as the conversion to 8 bits truncates
    torch.testing.assert_close(back, torch.tensor(edges).float(), atol=2e-3, rtol=0)


def test_what_is_beyond_the_levels_is_black_or_white() -> None:
    x = torch.tensor([-3.0, -0.51, 0.51, 1e30]).view(1, 1, 2, 2)
    assert Dequantization(5, 4).images(x, hint="").flatten().tolist() == [-1, -1, 1, 1]


def test_densities_become_bits() -> None:
    """A uniform density over all levels costs `bits` bits a value, and one that is twice as high one bit less."""
    quantized, uniform = Dequantization(5, 12), torch.zeros(2)
    assert quantized.bits_per_dim(uniform).tolist() == [5, 5]
    assert quantized.bits_per_dim(uniform + 12 * math.log(2)).tolist() == pytest.approx([4, 4])
    assert quantized.log_prob(uniform).tolist() == pytest.approx([-12 * math.log(32)] * 2)


def test_what_is_not_finite_is_black_and_said() -> None:
    x = torch.zeros(2, 1, 1, 3)
    x[1, 0, 0, :2] = torch.tensor([math.nan, math.inf])
    with pytest.warns(UserWarning, match=r"^1 of 2 images are not finite; what is not is black \(try less\)$"):
        images = Dequantization(8, 3).images(x, hint="try less")
    torch.testing.assert_close(images[1].flatten(), torch.tensor([-1.0, -1.0, images[0, 0, 0, 0].item()]), atol=1e-5, rtol=0)
