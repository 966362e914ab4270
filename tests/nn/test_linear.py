"""Linear maps by oneDNN against PyTorch's, with derivatives; when they are taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from triptych.nn import cpu
from triptych.nn import linear as linears
from triptych.nn.forward_mode import directional_derivative
from triptych.nn.linear import Linear, by_onednn, linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """oneDNN wherever it can be; the shapes of what it multiplied."""
    shapes: list[tuple[int, ...]] = []
    computed = linears.computed

    def noted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        shapes.append((*x.shape, len(weight)))
        return computed(x, weight, bias)

    monkeypatch.setattr(linears, "computed", noted)
    monkeypatch.setattr(linears, "by_onednn", lambda x, weight: x.dtype == torch.float32)
    monkeypatch.setattr(linears, "multiplies_in_halves", lambda: False)
    return shapes


@pytest.mark.parametrize(
    ("rows", "i", "o", "by_weight"),
    [
        (8, 768, 4608, True),
        (128, 384, 2304, True),
        (129, 384, 2304, False),
        (1024, 1536, 384, True),
        (512, 512, 256, True),
        (512, 510, 255, False),
        (512, 511, 256, False),
        (16384, 256, 128, False),
    ],
)
def test_on_zen_4_some_gradients_of_weights_are_onednns(
    rows: int, i: int, o: int, by_weight: bool, taken: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linears, "multiplies_in_halves", lambda: True)
    given = drawn(rows, i).requires_grad_(), drawn(o, i, seed=1).requires_grad_()
    torch.autograd.grad(linear(*given).sum(), given)
    assert taken == [(rows, i, o), (rows, o, i), *([(o, rows, i)] if by_weight else [])]
    monkeypatch.setattr(linears, "multiplies_in_halves", lambda: False)
    assert linears.learns_by_onednn(torch.ones(rows, o), given[0])


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (2, 2, 3, 7)])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_are_those_of_pytorch(shape: tuple[int, ...], biased: bool, taken: list[tuple[int, ...]]) -> None:
    layer = Linear(7, 4, bias=biased)
    given = [drawn(*shape).requires_grad_(), *layer.parameters()]
    exact = [each.detach().double().requires_grad_() for each in given]
    y, wanted = layer(given[0]), F.linear(*exact)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-6)
    gradient = drawn(*y.shape, seed=1)
    found = torch.autograd.grad(y, given, gradient)
    for ours, theirs in zip(found, torch.autograd.grad(wanted, exact, gradient.double()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    rows = y.numel() // 4
    assert taken == [(rows, 7, 4), (rows, 4, 7), (4, rows, 7)]


def test_on_zen_4_the_gradient_of_a_weight_by_many_rows_is_pytorchs(taken: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears, "multiplies_in_halves", lambda: True)
    x, weight, gradient = drawn(130, 7).requires_grad_(), drawn(4, 7, seed=1).requires_grad_(), drawn(130, 4, seed=2)
    found = torch.autograd.grad(linear(x, weight), (x, weight), gradient)
    torch.testing.assert_close(found, (gradient @ weight, gradient.t() @ x))
    assert taken == [(130, 7, 4), (130, 4, 7)]


def test_views_of_other_memory_layouts_are_multiplied_as_they_are(taken: list[tuple[int, ...]]) -> None:
    x, weight = drawn(7, 5).t(), drawn(7, 4, seed=1).t()
    torch.testing.assert_close(linear(x, weight), x @ weight.t())
    x, weight = drawn(5, 2, 7)[:, 1], drawn(9, 8)[1:5, 1:]
    torch.testing.assert_close(linear(x, weight), x @ weight.t())
    x, weight = drawn(5, 1).expand(5, 7), drawn(1, 7, seed=1).expand(4, 7)
    torch.testing.assert_close(linear(x, weight), x @ weight.t())
    assert taken == [(5, 7, 4)] * 3


@pytest.mark.parametrize("bias", [drawn(4, 2)[:, 0], drawn(1).expand(4), drawn(5)[1:]], ids=["steps", "one number", "a part"])
@pytest.mark.parametrize("learns", [True, False])
def test_a_bias_may_be_a_view(bias: torch.Tensor, learns: bool, taken: list[tuple[int, ...]]) -> None:
    x, weight = drawn(5, 7), drawn(4, 7, seed=1).requires_grad_(learns)
    torch.testing.assert_close(linear(x, weight, bias), x @ weight.t() + bias)
    assert len(taken) == 1


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7)])
def test_what_comes_out_can_be_changed_in_place(shape: tuple[int, ...], taken: list[tuple[int, ...]]) -> None:
    x, weight = drawn(*shape).requires_grad_(), drawn(4, 7, seed=1).requires_grad_()
    wanted = torch.autograd.grad(F.relu(F.linear(x, weight).mul(3)).pow(2).sum(), (x, weight))
    found = torch.autograd.grad(F.relu(linear(x, weight).mul_(3), inplace=True).pow(2).sum(), (x, weight))
    torch.testing.assert_close(found, wanted)
    assert len(taken) == 3
    with torch.no_grad():
        y, scale = linear(x, weight), torch.ones(()).requires_grad_()
    y.mul_(scale).sum().backward()
    torch.testing.assert_close(scale.grad, F.linear(x, weight).detach().sum())


@pytest.mark.parametrize(("by", "products"), [(0, 7), (1, 7)], ids=["x", "weight"])
def test_second_derivatives_are_those_of_pytorch(by: int, products: int, taken: list[tuple[int, ...]]) -> None:
    def penalty(*given: torch.Tensor) -> torch.Tensor:
        multiply = linear if given[0].dtype == torch.float32 else F.linear
        x, weight, bias = given
        (slope,) = torch.autograd.grad(multiply(x, weight, bias).pow(3).sum(), given[by], create_graph=True)
        return slope.pow(2).sum()

    given = [each.requires_grad_() for each in (drawn(5, 7), drawn(4, 7, seed=1), drawn(4, seed=2))]
    exact = [each.detach().double().requires_grad_() for each in given]
    found, wanted = torch.autograd.grad(penalty(*given), given), torch.autograd.grad(penalty(*exact), exact)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-3)
    assert len(taken) == products


def test_only_what_is_asked_for_is_computed(taken: list[tuple[int, ...]]) -> None:
    x, weight = drawn(5, 7), drawn(4, 7, seed=1)
    assert not linear(x, weight).requires_grad
    with torch.no_grad():
        assert not linear(x.requires_grad_(), weight).requires_grad
    taken.clear()
    linear(x, weight).sum().backward()
    assert (taken, weight.grad) == ([(5, 7, 4), (5, 4, 7)], None)
    taken.clear()
    linear(x.detach(), weight, bias := drawn(4).requires_grad_()).sum().backward()
    assert taken == [(5, 7, 4)]
    assert bias.grad is not None and bias.grad.tolist() == [5.0] * 4
    taken.clear()
    linear(x.detach(), weight.requires_grad_()).sum().backward()
    assert taken == [(5, 7, 4), (4, 5, 7)] and weight.grad is not None


def _forget() -> None:
    for question in (cpu.vectors, cpu.multiplies_fast, cpu.multiplies_in_halves):
        question.cache_clear()


@pytest.fixture
def zen_5(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bool]]:
    """What the CPU is said to be capable of: what Zen 5 is."""
    able = dict.fromkeys(("avx512_vp2intersect", "avx512_bf16"), True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    _forget()
    yield able
    _forget()


def test_onednn_is_for_many_products_in_float32_on_zen_5(zen_5: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*shape: int, outs: int = 128, dtype: torch.dtype = torch.float32) -> bool:
        return by_onednn(torch.empty(shape, dtype=dtype), torch.empty(outs, shape[-1], dtype=dtype))

    assert chosen(256, 128) and chosen(16, 16, 128)  # 2**15 numbers, 2**22 products
    assert not chosen(255, 128) and not chosen(256, 127)
    assert not chosen(256, 256, outs=127)
    assert chosen(1, 128, outs=2**15) and not chosen(128, outs=2**15)  # a vector
    assert not chosen(256, 128, dtype=torch.float64) and not chosen(256, 128, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not chosen(256, 128)
    assert not by_onednn(torch.empty(256, 128, device="meta"), torch.empty(128, 128, device="meta"))
    with monkeypatch.context() as patched:
        patched.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not chosen(256, 128)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not chosen(256, 128)
    monkeypatch.undo()


def test_onednn_is_not_for_other_cpus(zen_5: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.empty(256, 128)
    assert by_onednn(x, x)
    zen_5.pop("avx512_vp2intersect")
    _forget()
    assert not by_onednn(x, x)
    zen_5["avx512_vp2intersect"] = True
    _forget()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    _forget()
    assert not by_onednn(x, x)


@pytest.mark.parametrize(
    ("able", "taken"),
    [
        ("avx512_bf16 avx512_vbmi2", True),  # Zen 4
        ("avx512_bf16", False),  # Cooper Lake
        ("avx512_bf16 avx512_vbmi2 avx512_fp16 amx_bf16", False),  # Sapphire Rapids
        ("avx512_vbmi2 avx512_vp2intersect", False),  # Tiger Lake
    ],
)
def test_on_zen_4_onednn_is_for_more_products(able: str, taken: bool, zen_5: dict[str, bool]) -> None:
    zen_5.clear()
    zen_5.update(dict.fromkeys(able.split(), True))
    _forget()
    assert by_onednn(torch.empty(1024, 128), torch.empty(128, 128)) == taken  # 2**24
    assert by_onednn(torch.empty(8, 4608), torch.empty(768, 4608)) == taken  # a small result
    assert not by_onednn(torch.empty(1023, 128), torch.empty(128, 128))


def test_a_derivative_forwards_is_left_to_pytorch(zen_5: dict[str, bool]) -> None:
    x, weight, along = drawn(256, 128), drawn(128, 128, seed=1), drawn(256, 128, seed=2)
    assert by_onednn(x, weight)
    torch.testing.assert_close(directional_derivative(lambda x: linear(x, weight), (x,), (along,)), along @ weight.t())
    along, bias = drawn(128, 128, seed=2), drawn(128, seed=3)
    torch.testing.assert_close(directional_derivative(lambda weight: linear(x, weight), (weight,), (along,)), x @ along.t())
    slope = directional_derivative(lambda bias: linear(x, weight, bias), (bias,), (along[0],))
    torch.testing.assert_close(slope, along[0].expand(256, 128))


def test_functions_that_torch_func_transforms_take_pytorchs(zen_5: dict[str, bool]) -> None:
    given = drawn(256, 128), drawn(128, 128, seed=1), drawn(128, seed=2)
    assert by_onednn(*given[:2])
    found = torch.func.grad(lambda *each: linear(*each).square().sum(), argnums=(0, 1, 2))(*given)
    exact = [each.double().requires_grad_() for each in given]
    wanted = torch.autograd.grad(F.linear(exact[0], exact[1], exact[2]).square().sum(), exact)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-2)
    biased = torch.func.grad(lambda bias: linear(*given[:2], bias).square().sum())(given[2])
    torch.testing.assert_close(biased.double(), wanted[2], rtol=1e-4, atol=1e-2)
