"""Convolutions with derivatives of their own against PyTorch's and against finite differences, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F

from triptych.core.batch import Batch, DataSpec
from triptych.core.model import seeded_build
from triptych.core.rng import Rng
from triptych.gans.kl_networks import _conv
from triptych.gans.weight_norms import Conv2d as SpectralConv2d
from triptych.nn import convolution as convolutions
from triptych.nn import cpu
from triptych.nn import weight_gradient as weight_gradients
from triptych.nn.convolution import Conv2d, FastConv2d, convolution, fast_convolution, transposed_convolution
from triptych.nn.forward_mode import directional_derivative
from triptych.nn.weight_gradient import by_products, weight_gradient
from triptych.recipes.catalogue import load_recipe

SHAPES = {
    "3x3": {"padding": 1},
    "groups": {"padding": 1, "groups": 2},
    "stride": {"stride": 2, "padding": 1},
    "channels": {"groups": 4},
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def inputs(kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    groups = SHAPES[kind].get("groups", 1)
    return numbers(2, 4, 5, 5), numbers(4, 4 // groups, 3, 3, seed=1), numbers(4, seed=2)


@pytest.mark.parametrize("kind", SHAPES)
def test_values_and_derivatives_are_those_of_pytorch(kind) -> None:
    x, weight, bias = inputs(kind)
    ours, theirs = convolution(x, weight, bias, **SHAPES[kind]), F.conv2d(x, weight, bias, **SHAPES[kind])
    torch.testing.assert_close(ours, theirs)
    wanted = torch.autograd.grad(theirs.square().sum(), (x, weight, bias))
    torch.testing.assert_close(torch.autograd.grad(ours.square().sum(), (x, weight, bias)), wanted)
    ours, theirs = transposed_convolution(x, weight, **SHAPES[kind]), F.conv_transpose2d(x, weight, **SHAPES[kind])
    torch.testing.assert_close(ours, theirs)
    wanted = torch.autograd.grad(theirs.square().sum(), (x, weight))
    torch.testing.assert_close(torch.autograd.grad(ours.square().sum(), (x, weight)), wanted)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_second_and_third_derivatives(kind, transposed) -> None:
    x, weight, bias = inputs(kind)

    def gradients(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if transposed:
            y = transposed_convolution(x, weight, **SHAPES[kind]) + bias[:, None, None]
        else:
            y = convolution(x, weight, bias, **SHAPES[kind])
        return torch.autograd.grad(y.pow(3).sum(), (x, weight, bias), create_graph=True)

    assert torch.autograd.gradcheck(gradients, (x, weight, bias), fast_mode=True)
    assert torch.autograd.gradgradcheck(gradients, (x, weight, bias), fast_mode=True)


def test_a_gradient_by_the_input_alone_computes_none_of_the_weight(monkeypatch) -> None:
    x, weight, bias = inputs("3x3")
    y = convolution(x, weight, bias, padding=1)
    asked: list[tuple[bool, ...]] = []
    derivatives = torch.ops.aten.convolution_backward

    def counted(*arguments):
        asked.append(arguments[-1])
        return derivatives(*arguments)

    monkeypatch.setattr(torch.ops.aten, "convolution_backward", counted)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert asked == [(True, False, False)]
    torch.autograd.grad(y.sum(), weight)
    assert (False, True, False) in asked


def test_autocast_computes_in_half_precision_and_keeps_the_weights_gradient_in_float32() -> None:
    layer = Conv2d(4, 4, 3, padding=1)
    x = numbers(2, 4, 5, 5).detach().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()
    assert layer.weight.grad is not None and layer.bias is not None and layer.bias.grad is not None
    assert (y.dtype, layer.weight.grad.dtype, layer.bias.grad.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    torch.testing.assert_close(y.float(), F.conv2d(x, layer.weight, layer.bias, padding=1), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["x", "weight", "bias"])
@pytest.mark.parametrize("grad", [True, False])
def test_forward_mode_and_transforms_are_those_of_pytorch(which: int, grad: bool) -> None:
    given = [torch.randn(size, dtype=torch.float64) for size in ((2, 3, 5, 5), (4, 3, 3, 3), (4,))]
    direction = torch.randn_like(given[which])

    def along(convolve: Callable[..., torch.Tensor]) -> torch.Tensor:
        with fwd.dual_level(), torch.set_grad_enabled(grad):
            duals = [fwd.make_dual(x, direction) if number == which else x for number, x in enumerate(given)]
            tangent = fwd.unpack_dual(convolve(*duals, padding=1)).tangent
            assert tangent is not None
            return tangent

    torch.testing.assert_close(along(convolution), along(F.conv2d))
    ours, theirs = (torch.func.grad(lambda *x, f=f: f(*x).sin().sum(), argnums=which)(*given) for f in (convolution, F.conv2d))
    torch.testing.assert_close(ours, theirs)


def test_without_gradients_nothing_is_kept() -> None:
    with torch.no_grad():
        assert convolution(*inputs("3x3"), padding=1).grad_fn is None
    assert convolution(*(part.detach() for part in inputs("3x3")), padding=1).requires_grad is False


@pytest.mark.parametrize("kind", [Conv2d, FastConv2d])
def test_a_compiler_makes_one_graph_of_it(kind: type[torch.nn.Conv2d]) -> None:
    layer, x = kind(4, 4, 3, padding=1), numbers(2, 4, 5, 5).detach().float()  # in float64 there is nothing to choose
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), F.conv2d(x, layer.weight, layer.bias, padding=1))


KERNELS = {
    "3x3": (3, 3, 1, 1),
    "1x1": (1, 1, 0, 1),
    "2x2, padded": (2, 2, 1, 1),
    "3x3, bare": (3, 3, 0, 1),
    "5x5": (5, 5, 2, 1),
    "2x3": (2, 3, 1, 1),
    "4x4, stride": (4, 4, 2, 2),
    "3x3, stride": (3, 3, 1, 2),
    "3x2, stride 3": (3, 2, 0, 3),
}
"""Height, width, padding, stride."""


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("images", [1, 5])  # of which two are taken together
def test_a_weights_gradient_by_products(kind: str, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    height, width, padding, stride = KERNELS[kind]
    x, weight = numbers(images, 3, 7, 6), numbers(4, 3, height, width, seed=1)
    y = F.conv2d(x, weight, stride=stride, padding=padding)
    gradient = torch.randn_like(y)
    monkeypatch.setattr(weight_gradients, "_CACHED_VALUES", 2 * (y.shape[2] + padding) * y.shape[3] * width * 3)
    found = weight_gradient(x.detach(), gradient, (height, width), stride=stride, padding=padding)
    torch.testing.assert_close(found, torch.autograd.grad(y, weight, gradient)[0], atol=1e-12, rtol=1e-12)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_products_are_for_float32_of_many_channels_where_there_is_no_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(capability: str, *, channels: int = 64, kernel: int = 3, padding: int = 1, dtype: torch.dtype = torch.float32) -> bool:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        cpu.vectors.cache_clear()
        x, weight = torch.empty(1, channels, 4, 4, dtype=dtype), torch.empty(64, channels, kernel, kernel, dtype=dtype)
        return by_products(x, weight, padding=padding)

    assert chosen("AVX2")
    assert not chosen("AVX512")
    assert not chosen("DEFAULT")
    assert not chosen("AVX2", channels=63)
    assert not chosen("AVX2", dtype=torch.bfloat16)
    assert not chosen("AVX2", kernel=1, padding=1)
    cpu.vectors.cache_clear()


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Products wherever they can be; the shapes of the weights whose gradients were taken so."""
    taken: list[tuple[int, ...]] = []

    def noted(x: torch.Tensor, gradient: torch.Tensor, kernel: tuple[int, int], *, stride: int, padding: int) -> torch.Tensor:
        taken.append((gradient.shape[1], x.shape[1], *kernel))
        return weight_gradient(x, gradient, kernel, stride=stride, padding=padding)

    monkeypatch.setattr(convolutions, "by_products", lambda x, weight, *, padding: padding < min(weight.shape[2:]))
    monkeypatch.setattr(convolutions, "weight_gradient", noted)
    return taken


def test_a_fast_convolution_has_the_derivatives_of_pytorch_twice(products: list[tuple[int, ...]]) -> None:
    layer = FastConv2d(4, 4, 3, padding=1).double()
    x, (weight, bias) = numbers(2, 4, 5, 5), layer.parameters()
    wanted = torch.autograd.grad(F.conv2d(x, weight, bias, padding=1).pow(3).sum(), (x, weight, bias))
    torch.testing.assert_close(torch.autograd.grad(layer(x).pow(3).sum(), (x, weight, bias)), wanted)
    assert products == [(4, 4, 3, 3)]

    def gradients(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(fast_convolution(*given, padding=1).pow(3).sum(), given, create_graph=True)

    assert torch.autograd.gradcheck(gradients, (x, weight, bias), fast_mode=True)


@pytest.mark.parametrize("what", ["frozen", "without gradients", "half precision", "forwards"])
def test_a_fast_convolution_is_pytorchs_where_products_do_not_help(what: str, products: list[tuple[int, ...]]) -> None:
    x, weight = (part.detach().float() for part in (numbers(2, 4, 5, 5), numbers(4, 4, 3, 3, seed=1)))
    if what == "frozen":
        assert fast_convolution(x.requires_grad_(), weight, padding=1).grad_fn.name() == "ConvolutionBackward0"  # type: ignore[union-attr]
        return
    weight.requires_grad_()
    if what == "without gradients":
        with torch.no_grad():
            assert fast_convolution(x, weight, padding=1).grad_fn is None
    elif what == "half precision":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fast_convolution(x, weight, padding=1).float().sum().backward()
        assert products == []
    else:
        along = torch.randn_like(x)
        slope = directional_derivative(lambda x: fast_convolution(x, weight, padding=1), (x,), (along,))
        torch.testing.assert_close(slope, F.conv2d(along, weight, padding=1).detach())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("recipe", ["adm-digits", "edm-digits", "edm2-digits", "glow-digits"])
def test_networks_take_the_gradients_of_their_weights_by_products(recipe: str, request: pytest.FixtureRequest) -> None:
    settings = load_recipe(recipe).model.shrunk()
    model = seeded_build(settings, DataSpec(image_size=8, channels=1, num_classes=10), seed=0).train()
    for parameter in model.parameters():  # none is 0, so that all have a gradient
        torch.nn.init.normal_(parameter, std=0.1)
    batch, phase = Batch(torch.rand(2, 1, 8, 8) * 2 - 1, torch.tensor([1, 2]), torch.arange(2), {}), model.phases[0]

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        model.loss(phase, batch, Rng(0, ("test",), batch.index)).loss.sum().backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}

    plain, taken = gradients(), request.getfixturevalue("products")
    by_product = gradients()
    assert len(taken) > 3
    for name, gradient in plain.items():
        torch.testing.assert_close(by_product[name], gradient, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(lambda: SpectralConv2d(4, 4, 3, padding=1, weight_norm="spectral"), id="spectral norm"),
        pytest.param(lambda: SpectralConv2d(4, 4, 3, padding=1, padding_mode="reflect"), id="reflected"),
        pytest.param(lambda: SpectralConv2d(4, 4, 1, stride=2), id="1x1 with a stride"),
        pytest.param(lambda: _conv(4, 4), id="autoencoder"),
    ],
)
def test_layers_of_gans_take_them_so(layer: Callable[[], torch.nn.Module], products: list[tuple[int, ...]]) -> None:
    layer()(numbers(2, 4, 6, 6).float()).sum().backward()
    assert len(products) == 1


def test_a_convolution_of_a_gan_with_a_stride(products: list[tuple[int, ...]]) -> None:
    layer = SpectralConv2d(4, 4, 4, stride=2, padding=2).double()
    x, weight = numbers(2, 4, 6, 6), layer.weight
    wanted = torch.autograd.grad(F.conv2d(x, weight, layer.bias, stride=2, padding=2).pow(3).sum(), (x, weight))
    torch.testing.assert_close(torch.autograd.grad(layer(x).pow(3).sum(), (x, weight)), wanted)
    assert products == [(4, 4, 4, 4)]
