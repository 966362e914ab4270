from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.diffusion.blocks import SelfAttention, attend, timestep_embedding
from triptych.diffusion.dropout import kept
from triptych.diffusion.norm import ModulatedGroupNorm, Modulation, _plain
from triptych.diffusion.unet import UNet, UNetConfig, levels_of
from triptych.nn.resample import enlarged

SMALL = {"num_channels": 32, "num_res_blocks": 1, "channel_mult": (1, 2), "attention_resolutions": (8,), "num_heads": 2}


def network(*, randomize: bool = True, **flags: Any) -> UNet:
    torch.manual_seed(0)
    made = UNet(UNetConfig(**(SMALL | flags)), image_size=16, in_channels=3, out_channels=3)
    if randomize:
        for parameter in made.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.05)
    return made


def inputs(count: int = 4) -> tuple[Tensor, Tensor, Rng]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, 16, 16, generator=generator)
    return x, torch.randint(0, 1000, (count,), generator=generator), Rng(7, ("denoise", 0), torch.arange(100, 100 + count))


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm().detach() / b.norm().detach())


# Blocks.


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("fused", [True, False])  # as on a CPU, and as elsewhere
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("groups", "eps", "together"), [(32, 1e-5, 3), (4, 0.1, 2)])  # all samples, and two at a time
def test_norm_against_separate_operations(
    silu: bool,
    scaled: bool,
    dropped: bool,
    fused: bool,
    layout: torch.memory_format,
    groups: int,
    eps: float,
    together: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("triptych.diffusion.norm._CACHED_VALUES", together * 64 * 5 * 7)
    norm = (ModulatedGroupNorm(64) if groups == 32 else ModulatedGroupNorm(64, groups=groups, eps=eps)).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(3, 64, 5, 7, dtype=torch.float64).mul_(2).add_(1).contiguous(memory_format=layout).requires_grad_()
    scale, shift = (torch.randn(3, 64, dtype=torch.float64, requires_grad=True) for _ in range(2)) if scaled else (None, None)
    keep = torch.rand(3, 64, 5, 7) > 0.3 if dropped else None
    variables = [v for v in (x, norm.weight, norm.bias, scale, shift) if v is not None]

    expected = F.group_norm(x, groups, norm.weight, norm.bias, eps)
    if scale is not None and shift is not None:
        expected = expected * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
    expected = F.silu(expected) if silu else expected
    expected = expected if keep is None else torch.where(keep, expected * 1.25, 0)
    modulation = Modulation(scale=scale, shift=shift, silu=silu, keep=keep, gain=1.25)
    actual = norm(x, modulation) if fused else _plain(x, norm, modulation)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    grad = torch.randn_like(expected)
    for ours, theirs in zip(torch.autograd.grad(actual, variables, grad), torch.autograd.grad(expected, variables, grad), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    with torch.no_grad():
        assert not fused or torch.equal(norm(x, modulation), actual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropped", [False, True])
def test_norm_writes_over_nothing_that_it_was_given(dtype: torch.dtype, dropped: bool) -> None:
    x = torch.randn(3, 32, 8, 8).to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    keep = torch.rand(x.shape) > 0.2 if dropped else None
    y = ModulatedGroupNorm(32)(x, Modulation(silu=True, keep=keep, gain=1.25))
    gradient = torch.randn_like(y)
    given = [x, gradient] if keep is None else [x, gradient, keep]
    before = [each.detach().clone() for each in given]
    first = torch.autograd.grad(y, x, gradient, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(y, x, gradient)[0], first, rtol=0, atol=0)
    for each, was in zip(given, before, strict=True):
        torch.testing.assert_close(each.detach(), was, rtol=0, atol=0)


def test_norm_on_a_gpu_leaves_the_layout() -> None:
    x = torch.randn(2, 32, 4, 4).to(memory_format=torch.channels_last)
    assert _plain(x, ModulatedGroupNorm(32), Modulation(silu=True)).is_contiguous(memory_format=torch.channels_last)


def test_norm_of_one_image_whose_axis_of_images_has_an_odd_stride() -> None:
    """PyTorch takes it for one of channels last, and its kernel, which norms groups of five channels, does not."""
    torch.manual_seed(0)
    flat = torch.randn(160 * 5 * 7, dtype=torch.float64, requires_grad=True)
    norm = ModulatedGroupNorm(160).double()
    x = flat.as_strided((1, 160, 5, 7), (160, 1, 7 * 160, 160))
    assert x.is_contiguous(memory_format=torch.channels_last)
    expected, actual = F.group_norm(x.contiguous(memory_format=torch.contiguous_format), 32), norm(x)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    grad = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(output, flat, grad)[0] for output in (actual, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("channels", "side", "layout", "slow"),
    [
        (128, 31, torch.channels_last, True),
        (128, 32, torch.channels_last, False),
        (160, 8, torch.channels_last, False),
        (32, 8, torch.contiguous_format, False),
    ],
)
def test_norm_leaves_the_kernel_alone_where_that_is_slow(
    channels: int, side: int, layout: torch.memory_format, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    kernel = torch.native_group_norm
    monkeypatch.setattr(torch, "native_group_norm", lambda *given: (called.append(1), kernel(*given))[1])
    x = torch.randn(2, channels, side, side).contiguous(memory_format=layout)
    torch.testing.assert_close(ModulatedGroupNorm(channels)(x), F.group_norm(x, 32), atol=1e-5, rtol=1e-5)
    assert bool(called) != slow


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_norm_works_in_float32_on_half_precision(layout: torch.memory_format) -> None:
    x = (torch.randn(2, 64, 8, 8) + 30).to(torch.bfloat16, memory_format=layout)  # a large mean is what half-precision statistics lose
    exact = F.group_norm(x.double(), 32).to(torch.bfloat16)
    out = ModulatedGroupNorm(64)(x)
    assert out.dtype == torch.bfloat16
    assert (out.float() - exact.float()).abs().max() <= 0.02


def test_enlarged() -> None:
    assert enlarged(torch.tensor([[[[1.0, 2.0]]]])).tolist() == [[[[1, 1, 2, 2], [1, 1, 2, 2]]]]


def test_timestep_embedding() -> None:
    embedding = timestep_embedding(torch.tensor([0, 10]), 5)
    assert embedding.shape == (2, 5)
    assert embedding[0].tolist() == [1, 1, 0, 0, 0]
    expected = torch.tensor([10.0, 0.1])  # frequencies 1 and 10000^(-1/2)
    torch.testing.assert_close(embedding[1], torch.cat((expected.cos(), expected.sin(), torch.zeros(1))))


def test_half_precision_attention_is_close() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 64, 32).unbind(0)
    exact = F.softmax(q @ k.transpose(-1, -2) / 32**0.5, -1) @ v
    torch.testing.assert_close(attend(q, k, v), exact, atol=1e-5, rtol=0)
    half = attend(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert half.dtype == torch.bfloat16
    assert relative(half.float(), exact) < 0.01


@pytest.mark.usefixtures("float64")
def test_attention_orders_are_a_permutation_of_weights() -> None:
    torch.manual_seed(0)
    legacy, new = SelfAttention(64, heads=4, order="legacy"), SelfAttention(64, heads=4, order="new")
    nn.init.normal_(legacy.proj_out.weight)
    new.load_state_dict(legacy.state_dict())
    with torch.no_grad():
        new.qkv.weight.copy_(legacy.qkv.weight.view(4, 3, 16, 64, 1).transpose(0, 1).reshape(192, 64, 1))
        new.qkv.bias.copy_(legacy.qkv.bias.view(4, 3, 16).transpose(0, 1).reshape(192))
    x = torch.randn(2, 64, 4, 4)
    torch.testing.assert_close(new(x), legacy(x))
    new.load_state_dict(legacy.state_dict())
    assert relative(new(x), legacy(x)) > 0.1


def test_gradients_of_attention_have_the_strides_of_their_weights() -> None:
    """Else DDP, which compares them, warns in every training by several processes."""
    attention = SelfAttention(32, heads=1, order="new").to(memory_format=torch.channels_last)
    image = torch.randn(2, 32, 4, 4).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        attention(image).square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad is not None and parameter.grad.stride() == parameter.stride(), name


# The network.


@pytest.mark.parametrize("flags", [{}, {"resblock_updown": True}, {"scale_shift_norm": False, "conv_resample": False}])
def test_untrained_network_gives_exactly_0(flags: dict[str, Any]) -> None:
    x, t, rng = inputs()
    out = network(randomize=False, dropout=0.1, **flags)(x, t, None, rng)
    assert out.shape == x.shape
    assert not out.any()


@pytest.mark.usefixtures("float64")
def test_dropout_is_a_function_of_the_sample() -> None:
    x, t, rng = inputs()
    net = network(dropout=0.3)
    whole = net(x, t, None, rng)
    parts = torch.cat([net(x[part], t[part], None, rng[part]) for part in (slice(0, 1), slice(1, 4))])
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-4)
    assert torch.equal(net(x, t, None, rng), whole)
    assert relative(net(x, t, None, Rng(8, rng.stream, rng.index)), whole) > 0.01
    net.eval()
    assert torch.equal(net(x, t), net(x, t, None, rng))
    assert relative(net(x, t), whole) > 0.01


def test_dropout_keeps_the_mean_of_a_block() -> None:
    """Dropout comes before the last convolution, so the mean over masks is the output without dropout."""
    block = network(dropout=0.25).input_blocks[1][0]  # type: ignore[index]
    generator = torch.Generator().manual_seed(0)
    x, embedding = torch.randn(1, 32, 4, 4, generator=generator), torch.randn(1, 128, generator=generator)
    with torch.no_grad():
        dropped = block(x.expand(4000, -1, -1, -1), embedding.expand(4000, -1), Rng(0, ("x",), torch.arange(4000))) - x
        plain = block.eval()(x, embedding) - x
    assert relative(dropped[:1], plain) > 0.1
    assert relative(dropped.mean(0, keepdim=True), plain) < 0.03


def test_dropout_rate() -> None:
    torch.manual_seed(0)
    block = network(dropout=0.25).input_blocks[1][0]  # type: ignore[index]
    block.train()
    h = torch.ones(64, 32, 8, 8)
    keep = kept(block, h, Rng(0, ("x",), torch.arange(64)))
    assert keep is not None and keep.shape == h.shape
    dropped = ModulatedGroupNorm(32)(torch.randn(64, 32, 8, 8), Modulation(keep=keep, gain=1 / 0.75))
    assert abs(float((dropped != 0).float().mean()) - 0.75) < 0.005


def test_dropout_without_rng_is_an_error() -> None:
    x, t, _ = inputs()
    with pytest.raises(ValueError, match="rng"):
        network(dropout=0.1)(x, t)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("flags", [{}, {"resblock_updown": True}])
def test_checkpointed_gradient_is_the_plain_gradient(flags: dict[str, Any]) -> None:
    x, t, rng = inputs()
    outputs, grads = [], []
    for checkpoint in (False, True):
        net = network(dropout=0.2, checkpoint=checkpoint, **flags)
        x.requires_grad_().grad = None
        out = net(x, t, None, rng)
        outputs.append(out)
        grads.append(torch.autograd.grad((out**3).sum(), [x, *net.parameters()]))
    assert torch.equal(*outputs)
    for plain, recomputed in zip(*grads, strict=True):
        assert torch.equal(plain, recomputed)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_checkpointing_halves_activation_memory(precision: str) -> None:
    x, t, rng = inputs(2)

    def retained(*, checkpoint: bool) -> int:
        net = network(checkpoint=checkpoint, num_res_blocks=2, channel_mult=(1, 1), dropout=0.1)
        with torch.profiler.profile(profile_memory=True) as profile, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            kept = net(x, t, None, rng)
        assert kept.requires_grad
        return sum(event.self_cpu_memory_usage for event in profile.key_averages())

    recomputed, plain = retained(checkpoint=True), retained(checkpoint=False)
    assert 0 < recomputed < 0.5 * plain, (recomputed, plain)


def test_bf16_is_close_to_float32() -> None:
    x, t, rng = inputs()
    net = network(dropout=0.1, resblock_updown=True)
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = net(x, t, None, rng)
        assert out.dtype == torch.float32
        results.append((out, torch.cat([g.flatten() for g in torch.autograd.grad(out.square().mean(), list(net.parameters()))])))
    assert 0 < relative(results[1][0], results[0][0]) < 0.02
    assert relative(results[1][1], results[0][1]) < 0.05


def test_labels_exactly_when_the_network_has_classes() -> None:
    x, t, _ = inputs()
    net = UNet(UNetConfig(**SMALL), image_size=16, in_channels=3, out_channels=3, num_classes=5)
    with pytest.raises(ValueError, match="labels"):
        net(x, t)
    with pytest.raises(ValueError, match="labels"):
        network()(x, t, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="spans"):
        network()(x, t, span=t)


def test_activations_are_channels_last() -> None:
    x, t, _ = inputs()
    assert network()(x, t).is_contiguous(memory_format=torch.channels_last)


# Its configuration.


@pytest.mark.parametrize(
    ("size", "mult"),
    [
        (8, (1, 2)),
        (16, (1, 2, 2)),
        (28, (1, 2, 2)),
        (32, (1, 2, 2, 2)),
        (64, (1, 2, 3, 4)),
        (128, (1, 1, 2, 3, 4)),
        (256, (1, 1, 2, 2, 4, 4)),
        (512, (0.5, 1, 1, 2, 2, 4, 4)),
    ],
)
def test_default_levels(size: int, mult: tuple[float, ...]) -> None:
    """Runs that leave channel_mult to the table open with no other one."""
    levels = levels_of(UNetConfig(num_channels=64, attention_resolutions=()), image_size=size)
    assert levels.widths == tuple(64 * m for m in mult)
    assert levels.sizes == tuple(size // 2**level for level in range(len(mult)))


@pytest.mark.parametrize(
    ("flags", "size", "message"),
    [
        ({"channel_mult": None}, 48, r"channel_mult: no default for images of 48 pixels \(only for 8, 16, 28, 32, 64, 128, 256, 512\)"),
        ({"channel_mult": (1, 2, 2)}, 18, "a multiple of 4 pixels, as 3 levels need"),
        ({"num_channels": 48}, 16, "num_channels: gives a level of 48 channels, expected multiples of 32"),
        ({"num_channels": 32, "channel_mult": (0.5, 1)}, 16, "a level of 16 channels"),
        ({"attention_resolutions": (4,)}, 16, r"attention_resolutions: got 4, expected some of this network's resolutions \(16, 8\)"),
        ({"num_heads": 3}, 16, "num_heads: got 3, expected a divisor of 64"),
        ({"num_heads_upsample": 5}, 16, "num_heads_upsample: got 5, expected a divisor of 64"),
        ({"num_head_channels": 48}, 16, "num_head_channels: got 48, expected a divisor of 64"),
    ],
)
def test_impossible_networks(flags: dict[str, Any], size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        levels_of(UNetConfig(**(SMALL | flags)), image_size=size)


@pytest.mark.parametrize(
    "flags",
    [
        {"num_res_blocks": 0},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"channel_mult": ()},
        {"channel_mult": (1, 0)},
        {"num_heads": 0},
        {"num_head_channels": 0},
        {"num_heads_upsample": 2, "num_head_channels": 32},
    ],
)
def test_settings_out_of_range(flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(flags))):
        UNetConfig(**flags)
