"""The transformer against formulas written out in float64, and its counts against the published sizes."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn

from triptych.core.errors import ConfigError
from triptych.diffusion.dit import FREQUENCIES, Attention, Block, DiT, DiTConfig, position_table
from triptych.diffusion.unet import NO_LABEL

SMALL = {"patch": 2, "width": 32, "depth": 2, "heads": 4}


def network(*, num_classes: int | None = 5, size: int | tuple[int, int] = 8, spans: bool = False, moved: bool = True, **settings) -> DiT:
    torch.manual_seed(0)
    config = DiTConfig(**(SMALL | settings))
    made = DiT(config, image_size=size, in_channels=3, out_channels=3, num_classes=num_classes, spans=spans).double()
    for parameter in made.parameters() if moved else ():
        nn.init.normal_(parameter, std=0.1)
    return made


def inputs(count: int = 3, height: int = 8, width: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, height, width, generator=generator, dtype=torch.float64)
    return x, torch.rand(count, generator=generator, dtype=torch.float64), torch.arange(count)


def norm(x: Tensor) -> Tensor:
    """Of each patch, without weights, with 1e-6 beside the variance."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    return torch.einsum("...i,oi->...o", x, layer.weight) + layer.bias  # type: ignore[arg-type, operator]


def attention_by_hand(x: Tensor, layer: Attention) -> Tensor:
    """Head by head and query by query."""
    size, width = x.shape[-1] // layer.heads, x.shape[-1]
    qkv = linear(x, layer.qkv)
    mixed = torch.zeros_like(x)
    for sample in range(len(x)):
        for head in range(layer.heads):
            q, k, v = (qkv[sample, :, part * width + head * size : part * width + (head + 1) * size] for part in range(3))
            for asked in range(x.shape[1]):
                weights = (k @ q[asked] / math.sqrt(size)).exp()
                mixed[sample, asked, head * size : (head + 1) * size] = (weights[:, None] * v).sum(0) / weights.sum()
    return linear(mixed, layer.proj)


def gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def block_by_hand(x: Tensor, told: Tensor, block: Block) -> Tensor:
    vectors = linear(told, block.adaLN_modulation["1"])[:, None].split(x.shape[-1], dim=-1)
    shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = vectors
    x = x + gate * attention_by_hand((1 + scale) * norm(x) + shift, block.attn)
    hidden = gelu(linear((1 + scale_mlp) * norm(x) + shift_mlp, block.mlp["fc1"]))
    return x + gate_mlp * linear(hidden, block.mlp["fc2"])


def test_a_block_by_hand() -> None:
    block = network().blocks[0]
    assert isinstance(block, Block)
    x, told = torch.randn(2, 6, 32, dtype=torch.float64), torch.randn(2, 32, dtype=torch.float64)
    torch.testing.assert_close(block(x, told), block_by_hand(x, told, block), rtol=1e-10, atol=1e-10)


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def embedded(number: Tensor, embedder: nn.Module) -> Tensor:
    half = FREQUENCIES // 2
    angles = number[:, None] * torch.tensor([10_000 ** (-k / half) for k in range(half)], dtype=torch.float64)
    layers = embedder.mlp
    return linear(silu(linear(torch.cat((angles.cos(), angles.sin()), 1), layers["0"])), layers["2"])  # type: ignore[index]


@pytest.mark.parametrize("spans", [False, True])
def test_the_whole_network_by_hand(spans: bool) -> None:
    made = network(spans=spans, size=(8, 12))
    x, t, y = inputs(height=8, width=12)
    y[1] = NO_LABEL
    span = t.flip(0) / 2 if spans else None
    table = made.y_embedder.embedding_table.weight
    c = embedded(t, made.t_embedder) + torch.stack([table[0], table[5], table[2]])
    if span is not None:
        c = c + embedded(span, made.span_embedder)
    told = silu(c)
    weight, bias = made.x_embedder["proj"].weight, made.x_embedder["proj"].bias
    tokens = torch.zeros(3, 24, 32, dtype=torch.float64)
    for row in range(4):
        for column in range(6):
            patch = x[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            tokens[:, 6 * row + column] = torch.einsum("bcij,dcij->bd", patch, weight) + bias
            for k in range(8):
                rate = 10_000 ** (-k / 8)
                for part, value in enumerate(
                    (math.sin(column * rate), math.cos(column * rate), math.sin(row * rate), math.cos(row * rate))
                ):
                    tokens[:, 6 * row + column, 8 * part + k] += value
    for block in made.blocks:
        tokens = block_by_hand(tokens, told, block)  # type: ignore[arg-type]
    shift, scale = linear(told, made.final_layer.adaLN_modulation["1"])[:, None].split(32, dim=-1)
    patches = linear((1 + scale) * norm(tokens) + shift, made.final_layer.linear)
    expected = torch.zeros_like(x)
    for row in range(4):
        for column in range(6):
            for i in range(2):
                for j in range(2):
                    values = patches[:, 6 * row + column, 3 * (2 * i + j) : 3 * (2 * i + j) + 3]
                    expected[:, :, 2 * row + i, 2 * column + j] = values
    torch.testing.assert_close(made(x, t, y, span=span), expected, rtol=1e-9, atol=1e-9)


def test_the_table_of_positions_belongs_to_the_size_at_hand() -> None:
    made = network()
    before, (x, t, y) = set(made.state_dict()), inputs(height=4, width=12)
    assert made(x, t, y).shape == x.shape and set(made.state_dict()) == before
    assert position_table(2, 3, 16).shape == (1, 6, 16)


def test_spare_outputs_change_nothing() -> None:
    plain, spare = network(), network(spare_outputs=True)
    state = plain.state_dict()
    for name, tensor in spare.state_dict().items():
        if name.startswith("final_layer.linear"):
            tensor.unflatten(0, (4, 6))[:, :3] = state[name].unflatten(0, (4, 3))
        else:
            tensor.copy_(state[name])
    assert torch.equal(spare(*inputs()), plain(*inputs()))


def test_an_untrained_network_gives_0_and_learns_from_the_first_step() -> None:
    made = network(moved=False)
    x, t, y = inputs()
    assert not made(x, t, y).any()
    weights = made.x_embedder["proj"].weight.detach()
    bound = math.sqrt(6 / (32 + 12))
    assert 0.9 * bound < float(weights.abs().max()) <= bound, "xavier-uniform of the flattened kernel"
    for weights in (made.t_embedder.mlp["0"].weight, made.y_embedder.embedding_table.weight):
        assert 0.015 < float(weights.detach().std()) < 0.025  # type: ignore[operator]
    block = made.blocks[0]
    assert isinstance(block, Block)
    for layer in (block.attn.qkv, block.attn.proj, block.mlp["fc1"], block.mlp["fc2"]):
        bound = math.sqrt(6 / sum(layer.weight.shape))  # type: ignore[arg-type]
        assert 0.97 * bound < float(layer.weight.detach().abs().max()) <= bound and not layer.bias.any()  # type: ignore[operator, union-attr]
    (made(x, t, y) - x).square().sum().backward()
    assert made.final_layer.linear.weight.grad.norm() > 0  # type: ignore[union-attr]


def test_checkpointing_changes_no_gradient() -> None:
    found = []
    for checkpoint in (False, True):
        made = network(checkpoint=checkpoint)
        made(*inputs()).square().sum().backward()
        found.append([p.grad for p in made.parameters()])
    for plain, recomputed in zip(*found, strict=True):
        torch.testing.assert_close(plain, recomputed, rtol=1e-12, atol=1e-12)


def test_half_precision_is_near() -> None:
    made = network().float()
    x, t, y = inputs()
    x, t = x.float(), t.float()
    plain = made(x, t, y)
    with torch.autocast("cpu", torch.bfloat16):
        half = made(x, t, y)
    assert half.dtype == torch.float32
    assert 0 < (half - plain).norm() / plain.norm() < 0.03


def test_embeddings_modulation_and_the_last_layer_are_in_full_precision() -> None:
    made = network(spans=True).float()
    types: dict[str, torch.dtype] = {}
    for name, module in made.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, given, said, name=name: types.update({name: said.dtype}))
    x, t, y = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        made(x.float(), t.float(), y, span=t.float())
    half = {name for name, dtype in types.items() if dtype == torch.bfloat16}
    assert half == {f"blocks.{k}.{name}" for k in range(2) for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    assert len(types) == len(half) + 2 * 2 + 2 + 2  # two of each embedding, a modulation of each block, the last two


SIZES = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}
COUNTS = json.loads(
    """{"S/2": [32865056, 98304], "S/4": [32920448, 24576], "S/8": [33142016, 6144],
        "B/2": [130315808, 196608], "B/4": [130426496, 49152], "B/8": [130869248, 12288],
        "L/2": [457840672, 262144], "L/4": [457988224, 65536], "L/8": [458578432, 16384],
        "XL/2": [674834720, 294912], "XL/4": [675000704, 73728], "XL/8": [675664640, 18432]}"""
)
"""Parameters that are trained, and numbers of the table of positions: of latents 4 x 32 x 32 of 1,000 classes, with spare outputs."""


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_published_sizes(name: str) -> None:
    (width, depth, heads), patch = SIZES[name.partition("/")[0]], int(name.partition("/")[2])
    config = DiTConfig(width=width, depth=depth, heads=heads, patch=patch, spare_outputs=True)
    with torch.device("meta"):
        made = DiT(config, image_size=32, in_channels=4, out_channels=4, num_classes=1000)
    trained, positions = COUNTS[name]
    assert sum(parameter.numel() for parameter in made.parameters()) == trained
    assert position_table(32 // patch, 32 // patch, width).numel() == positions


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 30}, "width: got 30, expected a multiple of 4"),
        ({"heads": 3}, "heads: got 3, expected a divisor of 32"),
        ({"depth": 0}, "depth: got 0, expected at least 1"),
        ({"patch": 3}, "patch: got 3 for images of 8 x 8 pixels, expected a divisor of both sides"),
    ],
)
def test_errors(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        network(**settings)


def test_what_the_network_is_told_has_to_fit() -> None:
    x, t, y = inputs()
    for made, words in ((network(num_classes=None), (x, t, y)), (network(), (x, t)), (network(spans=True), (x, t, y))):
        with pytest.raises(ValueError, match="exactly when"):
            made(*words)
