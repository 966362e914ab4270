"""Convolutions of doubled maps, against the convolution of the large map."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from triptych.nn import enlarging
from triptych.nn.enlarging import Border, convolved_enlarged


@pytest.mark.parametrize("border", ["zeros", "reflect", "replicate"])
@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
@pytest.mark.parametrize("size", [4, 8, 11])  # below and above the size from which the kernel is folded
@pytest.mark.parametrize("biased", [True, False])
def test_convolution_of_an_enlarged_map(border: Border, kernel: int, size: int, biased: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 5, size, size + 2), torch.randn(6, 5, kernel, kernel), torch.randn(6)
    variables = [v.double().requires_grad_() for v in (x, weight, *([bias] if biased else []))]
    large = variables[0].repeat_interleave(2, 2).repeat_interleave(2, 3)
    large = F.pad(large, [kernel // 2] * 4, mode="constant" if border == "zeros" else border)
    expected = F.conv2d(large, *variables[1:])
    actual = convolved_enlarged(*variables[:2], variables[2] if biased else None, border=border)
    torch.testing.assert_close(actual, expected, atol=1e-11, rtol=1e-11)
    grad = torch.randn_like(expected)
    for ours, theirs in zip(torch.autograd.grad(actual, variables, grad), torch.autograd.grad(expected, variables, grad), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("kernel", "share"), [(1, 1 / 4), (3, 9**2 / 8**2 * 4 / 9), (5, 9 / 25)])
def test_fewer_products(kernel: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the kernels have taps for each of the windows: 9 x 9 for the 8 x 8 pixels with 3x3 kernels."""
    seen = []
    plain = enlarging.fast_convolution

    def counted(x: torch.Tensor, weight: torch.Tensor, *given: object, **named: object) -> torch.Tensor:
        out = plain(x, weight, *given, **named)  # type: ignore[arg-type]
        seen.append(out[0].numel() * weight[0].numel())
        return out

    monkeypatch.setattr(enlarging, "fast_convolution", counted)
    convolved_enlarged(torch.randn(1, 3, 8, 8), torch.randn(4, 3, kernel, kernel), None)
    assert sum(seen) == pytest.approx(share * 4 * 16 * 16 * 3 * kernel**2)


@pytest.mark.parametrize("border", ["zeros", "reflect"])
def test_under_autocast_it_is_in_its_precision(border: Border) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, 4, 9, 8), torch.randn(3, 4, 5, 5)
    exact = convolved_enlarged(x, weight, None, border=border)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = convolved_enlarged(x, weight, None, border=border)
    assert found.dtype == torch.bfloat16
    assert (found.float() - exact).abs().max() <= 0.02 * exact.abs().max()
