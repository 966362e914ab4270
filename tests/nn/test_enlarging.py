"""Convolutions of doubled maps, against the convolution of the large map."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from triptych.nn import enlarging
from triptych.nn.enlarging import Border, convolved_enlarged, mirrored, padded


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


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 3), (0, 2), (2, 0)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_mirrored_border_has_the_derivatives_of_the_librarys(rows: int, columns: int, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(2, 3, 4, 5).double(), torch.randn(2, 3, 4 + 2 * rows, 5 + 2 * columns).double()
    x = x.to(memory_format=layout).requires_grad_()
    results = []
    for y in (mirrored(x, rows=rows, columns=columns), F.pad(x, (columns, columns, rows, rows), mode="reflect")):
        (first,) = torch.autograd.grad((y.pow(3) * weights).sum(), x, create_graph=True)
        results.append((y.detach(), first.detach(), *torch.autograd.grad(first.square().sum(), x)))
        assert y.is_contiguous(memory_format=layout)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_border_whose_gradients_have_an_order_is_taken_where_there_has_to_be_one(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has none for that of F.pad on a GPU, and refuses it; on a CPU it is the faster one."""
    monkeypatch.setattr(enlarging, "in_order", lambda x: ordered)
    used, library = [], F.pad
    monkeypatch.setattr(F, "pad", lambda *given, **named: used.append(named["mode"]) or library(*given, **named))
    x = torch.randn(1, 2, 4, 4)
    assert torch.equal(padded(x, "reflect", rows=1, columns=2), library(x, (2, 2, 1, 1), mode="reflect"))
    assert torch.equal(padded(x, "replicate", rows=1, columns=2), library(x, (2, 2, 1, 1), mode="replicate"))
    assert used == (["replicate"] if ordered else ["reflect", "replicate"])
