"""The family's layers against their formulas."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.core.errors import ConfigError
from triptych.gans.layers import BlockOptions, ConvBlock, LinearBlock, Nonlinearity, ResBlock
from triptych.gans.norms import AdaptiveNorm, Norm, NormKind, SpatialNorm, build_norm
from triptych.gans.spectral_norm import divided
from triptych.gans.weight_norms import (
    Conv2d,
    Linear,
    find_singular_vectors,
    fold_spectral_norm,
    normalised_weight,
    power_iteration,
    spectral_layers,
)
from triptych.nn.enlarging import Border


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def largest(weight: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(weight.detach().flatten(1), ord=2)


@pytest.mark.parametrize(
    "layer",
    [
        Conv2d(64, 48, 3, weight_norm="spectral"),
        Conv2d(128, 256, 3, weight_norm="spectral"),
        Conv2d(3, 16, 7, weight_norm="spectral"),
        Conv2d(20, 1, 1, bias=False, weight_norm="spectral"),
        Linear(300, 200, weight_norm="spectral"),
        Linear(5, 1, weight_norm="spectral"),
    ],
    ids=str,
)
def test_spectral_norm_divides_by_the_largest_singular_value_from_the_start(layer: Conv2d | Linear) -> None:
    assert float(largest(normalised_weight(layer))) == pytest.approx(1, rel=1e-5)
    power_iteration(layer, steps=3000)
    assert float(largest(normalised_weight(layer))) == pytest.approx(1, rel=1e-5)


def test_a_forward_pass_never_moves_the_vectors_and_power_iteration_does() -> None:
    layer = Conv2d(4, 6, 3, weight_norm="spectral").train()
    with torch.no_grad():
        layer.weight_orig.copy_(torch.randn(6, 4, 3, 3))
    before = copy.deepcopy(layer.state_dict())
    layer(torch.randn(2, 4, 8, 8)).sum().backward()
    assert all(torch.equal(before[name], tensor) for name, tensor in layer.state_dict().items())
    matrix, u = layer.weight_orig.detach().flatten(1), before["weight_u"]
    power_iteration(layer)
    v = matrix.T @ u / (matrix.T @ u).norm()
    torch.testing.assert_close(layer.weight_v, v)
    torch.testing.assert_close(layer.weight_u, matrix @ v / (matrix @ v).norm())
    find_singular_vectors(layer)
    assert float(largest(normalised_weight(layer))) == pytest.approx(1, rel=1e-5)


def test_the_gradient_of_spectral_norm_takes_its_vectors_as_constants() -> None:
    layer, probe = Conv2d(4, 6, 3, weight_norm="spectral"), torch.randn(6, 4, 3, 3)
    (normalised_weight(layer) * probe).sum().backward()
    weight, u, v = layer.weight_orig.detach(), layer.weight_u, layer.weight_v
    sigma = u @ weight.flatten(1) @ v
    expected = probe / sigma - (probe * weight).sum() / sigma**2 * torch.outer(u, v).view_as(weight)
    torch.testing.assert_close(layer.weight_orig.grad, expected)


def test_spectral_norm_does_not_depend_on_the_memory_format() -> None:
    layer = Conv2d(4, 6, 3, weight_norm="spectral")
    wide = copy.deepcopy(layer).to(memory_format=torch.channels_last)
    assert wide.weight_orig.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(normalised_weight(wide), normalised_weight(layer))
    with torch.no_grad():
        for one in (layer, wide):
            one.weight_orig.mul_(torch.linspace(1, 2, 9).view(3, 3))
    for one in (layer, wide):
        power_iteration(one, steps=2)
    torch.testing.assert_close(wide.weight_v, layer.weight_v)
    torch.testing.assert_close(wide.weight_u, layer.weight_u)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_spectral_norm_can_be_differentiated_twice(layout) -> None:
    weight, u, v = torch.randn(3, 2, 2, 3).double().to(memory_format=layout), torch.randn(3).double(), torch.randn(12).double()
    assert weight.is_contiguous(memory_format=layout)
    weight.requires_grad_()
    assert torch.autograd.gradcheck(lambda weight: divided(weight, u, v), (weight,))
    assert torch.autograd.gradgradcheck(lambda weight: divided(weight, u, v), (weight,))
    assert torch.autograd.gradcheck(lambda weight: divided(weight, u, v).square(), (weight,), check_forward_ad=True)


def test_torch_func_transforms_the_input_of_a_spectral_norm() -> None:
    layer, x = Conv2d(3, 2, 3, weight_norm="spectral"), torch.randn(2, 3, 5, 5).requires_grad_()
    (expected,) = torch.autograd.grad(layer(x).square().sum(), x)
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(lambda x: layer(x).square().sum())(x.detach()), expected)


def test_a_layer_alone_is_folded_too() -> None:
    layer = Conv2d(4, 6, 3, weight_norm="spectral")
    folded = fold_spectral_norm(layer.state_dict())
    torch.testing.assert_close(folded, {"bias": layer.bias.detach(), "weight": normalised_weight(layer).detach()})


@pytest.mark.parametrize("geometry", [{"stride": 2, "padding": 1}, {"padding": 0}], ids=str)
def test_what_enlarges_keeps_the_size(geometry: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="got kernels of 3, .* this does not keep the size"):
        Conv2d(4, 6, 3, enlarges=True, **geometry)


def test_folded_weights_give_the_same_output_without_spectral_norm() -> None:
    options = BlockOptions(weight_norm="spectral", norm=Norm("instance"), nonlinearity="relu")
    network, plain = ResBlock(4, 6, options=options), ResBlock(4, 6, options=BlockOptions(norm=Norm("instance"), nonlinearity="relu"))
    assert len(list(spectral_layers(network))) == 3
    folded = fold_spectral_norm(network.state_dict())
    assert set(folded) == set(plain.state_dict())
    plain.load_state_dict(folded)
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(plain(x), network(x))
    assert list(spectral_layers(plain)) == []


def test_weight_norm_gives_each_output_its_own_length() -> None:
    layer = Conv2d(4, 6, 3, weight_norm="weight")
    assert list(layer.state_dict()) == ["bias", "weight_g", "weight_v"]
    torch.testing.assert_close(normalised_weight(layer), layer.weight_v)
    with torch.no_grad():
        layer.weight_v.mul_(torch.rand(6, 1, 1, 1) + 1)
        layer.weight_g.fill_(3)
    torch.testing.assert_close(normalised_weight(layer).flatten(1).norm(dim=1), torch.full((6,), 3.0))


@pytest.mark.parametrize(("weight_norm", "bias"), [("none", True), ("spectral", True), ("weight", False)])
@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate"])
def test_convolutions_are_those_of_their_normalised_weight(weight_norm, bias, padding_mode) -> None:
    layer = Conv2d(3, 5, 3, stride=2, padding=1, bias=bias, padding_mode=padding_mode, weight_norm=weight_norm)
    x = torch.randn(2, 3, 9, 8)
    padded = F.pad(x, (1, 1, 1, 1), mode="constant" if padding_mode == "zeros" else padding_mode)
    torch.testing.assert_close(layer(x), F.conv2d(padded, normalised_weight(layer), layer.bias, stride=2))


def test_adaptive_norm_in_both_forms() -> None:
    x, z = torch.randn(2, 6, 5, 5), torch.randn(2, 4, 1, 1)
    mean, var = x.mean((2, 3), keepdim=True), x.var((2, 3), unbiased=False, keepdim=True)
    normal = (x - mean) / (var + 1e-5).sqrt()
    one = build_norm(AdaptiveNorm(Norm("instance", affine=False), cond_channels=4), 6)
    state = one.state_dict()
    assert list(state) == ["fc.layers.conv.weight", "fc.layers.conv.bias"]
    both = (z.flatten(1) @ state["fc.layers.conv.weight"].T + state["fc.layers.conv.bias"])[..., None, None]
    torch.testing.assert_close(one(x, z), normal * (1 + both[:, :6]) + both[:, 6:])
    two = build_norm(AdaptiveNorm(Norm("batch"), cond_channels=4, separate=True, weight_norm="spectral"), 6).eval()
    gamma, beta = (layer["layers"]["conv"](z.flatten(1))[..., None, None] for layer in (two.fc_gamma, two.fc_beta))
    torch.testing.assert_close(two(x, z), x / (1 + 1e-5) ** 0.5 * (1 + gamma) + beta)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("filters", [5, 0])
def test_spatially_adaptive_norm(separate: bool, filters: int) -> None:
    x, maps = torch.randn(2, 6, 4, 4), (torch.randn(2, 3, 8, 8), torch.randn(2, 2, 4, 4))
    norm = SpatialNorm(Norm("instance", affine=False), (3, 2), num_filters=filters, kernel_size=3, separate=separate)
    layer = build_norm(norm, 6)
    state, out = layer.state_dict(), build_norm(Norm("instance", affine=False), 6)(x)

    def convolved(name: str, given: Tensor) -> Tensor:
        return F.conv2d(given, state[f"{name}.layers.conv.weight"], state[f"{name}.layers.conv.bias"], padding=1)

    for index, given in enumerate((maps[0][..., ::2, ::2], maps[1])):  # the nearest pixel is the upper left one
        hidden = convolved(f"mlps.{index}.0", given).relu() if filters else given
        if separate:
            gamma, beta = convolved(f"gammas.{index}", hidden), convolved(f"betas.{index}", hidden)
        else:
            gamma, beta = convolved(f"mlps.{index}.{1 if filters else 0}", hidden).chunk(2, dim=1)
        out = out * (1 + gamma) + beta
        torch.testing.assert_close(layer(x, *maps[: index + 1]), out)  # a map that is not given modulates nothing
    names = {"separate": ["gammas.{}", "betas.{}"], "joint": ["mlps.{}.1" if filters else "mlps.{}.0"]}["separate" if separate else "joint"]
    names += ["mlps.{}.0"] if filters else []
    weights = {key.removesuffix(".layers.conv.weight") for key in state if key.endswith("weight")}
    assert weights == {name.format(index) for name in names for index in (0, 1)}, "the names of published weights"
    for wrong in ((), (None, maps[1]), (*maps, maps[1])):
        with pytest.raises(ValueError, match=f"got {len(wrong)} conditional maps, expected the first of 2"):
            layer(x, *wrong)


def test_a_map_that_is_none_keeps_the_place_of_the_next() -> None:
    x, maps = torch.randn(2, 4, 4, 4), (torch.randn(2, 3, 4, 4), torch.randn(2, 2, 4, 4), torch.randn(2, 1, 4, 4))
    layer = build_norm(SpatialNorm(Norm("instance", affine=False), (3, 2, 1), num_filters=0, separate=False), 4)
    skipped = layer(x, maps[0], None, maps[2])
    with torch.no_grad():
        for parameter in layer.mlps[1].parameters():
            parameter.zero_()  # gamma and beta of the second map are 0
    torch.testing.assert_close(layer(x, *maps), skipped)


@pytest.mark.parametrize(
    ("kind", "dims"), [("instance", (2, 3)), ("batch", (0, 2, 3)), ("sync_batch", (0, 2, 3)), ("layer", (1,)), ("layer_2d", (1, 2, 3))]
)
def test_plain_norms(kind: NormKind, dims: tuple[int, ...]) -> None:
    x = torch.randn(2, 8, 5, 6) * 3 + 1
    norm = build_norm(Norm(kind), 8)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(8))
        norm.bias.copy_(torch.randn(8))
    normal = (x - x.mean(dims, keepdim=True)) / (x.var(dims, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x), normal * norm.weight[:, None, None] + norm.bias[:, None, None])
    assert not list(build_norm(Norm(kind, affine=False), 8).parameters())


def test_group_norm_has_four_groups() -> None:
    x = torch.randn(2, 8, 5, 6)
    grouped = x.view(2, 4, 2, 5, 6)
    normal = (grouped - grouped.mean((2, 3, 4), keepdim=True)) / (grouped.var((2, 3, 4), unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(build_norm(Norm("group"), 8)(x), normal.view_as(x))
    with pytest.raises(ConfigError, match="norm: got group for 6 channels, expected a multiple of 4"):
        build_norm(Norm("group"), 6)


@pytest.mark.parametrize("kind", ["instance", "batch", "layer", "layer_2d", "group"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_statistics_are_those_of_float32_in_bfloat16(kind: NormKind, memory_format: torch.memory_format) -> None:
    x = (torch.randn(2, 8, 64, 64) * 0.1 + 5).bfloat16().contiguous(memory_format=memory_format)
    norm = build_norm(Norm(kind), 8)
    expected = norm(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert float((norm(x).float() - expected).detach().abs().max()) < 0.02  # half a step of bfloat16 between 2 and 4, twice


@pytest.mark.parametrize("order", ["CNA", "CAN", "NAC", "ANC", "CN", "AC", "C"])
def test_the_order_of_a_block(order: str) -> None:
    options = BlockOptions(norm=Norm("instance"), nonlinearity="leakyrelu")
    block, x = ConvBlock(3, 5, 3, order=order, options=options), torch.randn(2, 3, 8, 8)
    names = {"C": "conv", "N": "norm", "A": "nonlinearity"}
    assert list(block.layers) == [names[letter] for letter in order]
    out = x
    for letter in order:
        match letter:
            case "C":
                out = F.conv2d(out, block.layers["conv"].weight, block.layers["conv"].bias, padding=1)
            case "N":
                out = F.instance_norm(out)
            case "A":
                out = torch.where(out > 0, out, 0.2 * out)
    torch.testing.assert_close(block(x), out)


@pytest.mark.parametrize("order", ["CNA", "NAC", "ACN", "CAN"])
@pytest.mark.parametrize("norm", [Norm("none"), Norm("instance"), AdaptiveNorm(Norm("none"), 2), SpatialNorm(Norm("none"), (2,))])
@pytest.mark.parametrize("nonlinearity", ["relu", "leakyrelu"])
def test_a_nonlinearity_writes_over_nothing_that_another_needs(
    order: str, norm: Norm | AdaptiveNorm | SpatialNorm, nonlinearity: Nonlinearity
) -> None:
    torch.manual_seed(0)
    block = ConvBlock(4, 4, 3, order=order, options=BlockOptions(norm=norm, nonlinearity=nonlinearity)).double()
    apart = copy.deepcopy(block)
    apart._own_input = False
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)
    condition = torch.randn((2, 2) if isinstance(norm, AdaptiveNorm) else (2, 2, 8, 8), dtype=torch.float64)
    kept, results = x.clone(), []
    for made in (block, apart):
        given = x.clone().requires_grad_()
        y = made(given * 1, condition)
        results.append((y.detach(), *torch.autograd.grad(y.square().sum(), (given, *made.parameters()), allow_unused=True)))
        made(x, condition)
    assert torch.equal(x, kept)
    assert block.layers["nonlinearity"].inplace == (
        order[0] != "A" and (order, norm) not in (("CNA", Norm("instance")), ("NAC", Norm("instance")), ("NAC", Norm("none")))
    )
    for ours, theirs in zip(*results, strict=True):
        assert ours is theirs is None or torch.equal(ours, theirs)


def test_a_block_asks_nothing_that_breaks_a_compiled_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    block, x = ConvBlock(4, 4, 3, options=BlockOptions(norm=Norm("instance"), nonlinearity="relu")), torch.randn(2, 4, 8, 8)
    expected = block(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(Tensor, "_is_view", lambda self: pytest.fail("the compiler cannot trace this"))
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("order", ["CC", "CNX", "N", ""])
def test_an_order_that_is_none_is_refused(order: str) -> None:
    with pytest.raises(ValueError, match="expected C"):
        ConvBlock(3, 3, 3, order=order, options=BlockOptions())


def test_linear_blocks() -> None:
    block, x = LinearBlock(4, 6, options=BlockOptions(norm=Norm("batch"), nonlinearity="relu")), torch.randn(5, 4)
    conv = block.layers["conv"]
    torch.testing.assert_close(block(x), F.batch_norm(F.linear(x, conv.weight, conv.bias), None, None, training=True).relu())
    with pytest.raises(ValueError, match="for images, not for vectors"):
        LinearBlock(4, 6, options=BlockOptions(norm=Norm("instance")))


def test_residual_blocks_of_every_order() -> None:
    options, x = BlockOptions(norm=Norm("instance"), nonlinearity="relu"), torch.randn(2, 4, 8, 8)

    def conv(block: nn.Module, given: Tensor) -> Tensor:
        layer = block.layers["conv"]
        return F.conv2d(given, layer.weight, layer.bias, padding=layer.kernel_size[0] // 2)

    norm = F.instance_norm
    b = ResBlock(4, 6, order="CNACNA", options=options)
    assert b.conv_block_0.layers["conv"].weight.shape == (4, 4, 3, 3)  # the hidden width is the smaller one
    torch.testing.assert_close(
        b(x), norm(conv(b.conv_block_1, norm(conv(b.conv_block_0, x)).relu())).relu() + norm(conv(b.conv_block_s, x))
    )
    b = ResBlock(4, 4, order="CNACN", options=options)
    assert b.conv_block_s is None
    torch.testing.assert_close(b(x), norm(conv(b.conv_block_1, norm(conv(b.conv_block_0, x)).relu())) + x)
    b = ResBlock(4, 6, order="NACNAC", bias=(True, True, False), options=options)
    assert b.conv_block_s.layers["conv"].bias is None
    residual = conv(b.conv_block_1, norm(conv(b.conv_block_0, norm(x).relu())).relu())
    torch.testing.assert_close(b(x), residual + conv(b.conv_block_s, norm(x)))
    b = ResBlock(4, 6, order="NACNAC", shortcut_nonlinearity=True, options=options)
    residual = conv(b.conv_block_1, norm(conv(b.conv_block_0, norm(x).relu())).relu())
    torch.testing.assert_close(b(x), residual + conv(b.conv_block_s, norm(x).relu()))


@pytest.mark.parametrize("size", [4, 8])  # below and from the size on from which the kernel is folded
@pytest.mark.parametrize("outs", [2, 4])  # with a convolution in the shortcut, and without
@pytest.mark.parametrize("border", ["zeros", "reflect"])
def test_a_residual_block_that_doubles_the_size(size: int, outs: int, border: Border) -> None:
    options = BlockOptions(norm=Norm("instance"), nonlinearity="relu", padding_mode=border)
    block = ResBlock(4, outs, 5, shortcut_nonlinearity=True, options=options, enlarges=True).double()
    x = torch.randn(2, 4, size, size + 1, dtype=torch.float64)

    def normal(part: nn.Module, given: Tensor) -> Tensor:
        conv, reach = part.layers["conv"], part.layers["conv"].kernel_size[0] // 2
        given = F.pad(given, [reach] * 4, mode="constant" if border == "zeros" else border)
        return F.instance_norm(F.conv2d(given, conv.weight, conv.bias)).relu()

    def twice(given: Tensor) -> Tensor:
        return given.repeat_interleave(2, 2).repeat_interleave(2, 3)

    short = twice(x) if outs == 4 else normal(block.conv_block_s, twice(x))
    expected = normal(block.conv_block_1, twice(normal(block.conv_block_0, x))) + short
    torch.testing.assert_close(block(x), expected, atol=1e-10, rtol=1e-10)
    assert outs == 4 or list(block.conv_block_s.layers) == ["conv", "norm", "nonlinearity"]


def test_a_norm_before_a_doubling_is_refused() -> None:
    with pytest.raises(ValueError, match="'NACNAC' for a block that doubles the size"):
        ResBlock(4, 2, order="NACNAC", enlarges=True)


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_of_instance_norm_are_those_of_its_formula_in_every_layout(count: int) -> None:
    """With one sample PyTorch's own has wrong ones when the gradient comes channels last."""
    layer = build_norm(Norm("instance"), 3)
    assert layer is not None
    layer.double()
    weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
    with torch.no_grad():
        weight.normal_()
        bias.normal_()
    x = torch.randn(count, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(count, 3, 5, 4, dtype=torch.float64)
    mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True, correction=0)
    formula = (x - mean) / torch.sqrt(variance + 1e-5) * weight[:, None, None] + bias[:, None, None]
    expected = torch.autograd.grad(formula, (x, weight, bias), upstream)
    for layout in (torch.contiguous_format, torch.channels_last):
        found = torch.autograd.grad(layer(x), (x, weight, bias), upstream.contiguous(memory_format=layout))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_convolution_of_single_pixels_never_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient would be written beyond its memory (oneDNN with AVX-512, channels last, fewer than 16 channels: free() aborts)."""
    layer = Conv2d(3, 5, 1, stride=2).double()
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    expected = F.conv2d(x, layer.weight, layer.bias, stride=2)
    strides = []
    plain = F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda *given, **named: strides.append([*given[3:4], named.get("stride")]) or plain(*given, **named))
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)
    assert strides == [[1]]
