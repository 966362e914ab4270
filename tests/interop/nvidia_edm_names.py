"""The names and shapes of the tensors of EDM's networks, from the published formulas alone: nothing here knows of our networks."""

from __future__ import annotations

from collections.abc import Sequence

Shapes = dict[str, tuple[int, ...]]


def song_unet(
    resolution: int,
    width: int,
    mult: Sequence[int],
    *,
    blocks: int = 4,
    attended: Sequence[int] = (16,),
    classes: int = 0,
    augment: int = 9,
    ncsnpp: bool = False,
    channels: int = 3,
) -> Shapes:
    """Of DDPM++, or NCSN++."""
    waves, embedding, taps = width * (2 if ncsnpp else 1), 4 * width, 4 if ncsnpp else 2
    names: Shapes = {"map_noise.freqs": (waves // 2,)} if ncsnpp else {}
    names |= {"map_label.weight": (waves, classes), "map_label.bias": (waves,)} if classes else {}
    names |= {"map_augment.weight": (waves, augment)} if augment else {}
    names |= _both("map_layer0", (embedding, waves)) | _both("map_layer1", (embedding, embedding))

    def block(name: str, ins: int, outs: int, *, attention: bool = False, resampled: bool = False) -> Shapes:
        skip = _both(f"{name}.skip", (outs, ins, 1, 1)) if ins != outs or resampled else {}
        return _block(name, ins, outs, embedding, affine=outs, attention=attention, taps=taps if resampled else 0) | skip

    def before(size: int, level: int, width_before: int, image: int) -> Shapes:
        if level == 0:
            return _both(f"enc.{size}x{size}_conv", (width, channels, 3, 3))
        start, residual = f"enc.{size}x{size}", {}
        if ncsnpp:
            residual = _both(f"{start}_aux_residual", (width_before, image, 3, 3))
            residual[f"{start}_aux_residual.resample_filter"] = (1, 1, taps, taps)
        return block(f"{start}_down", width_before, width_before, resampled=True) | residual

    more, last = _levels(resolution, [m * width for m in mult], width, channels, blocks, before, block, attended, everywhere=False)
    names |= more
    start = f"dec.{resolution}x{resolution}_aux"
    names |= {f"{start}_norm.weight": (last,), f"{start}_norm.bias": (last,)} | _both(f"{start}_conv", (channels, last, 3, 3))
    return {f"model.{name}": shape for name, shape in names.items()}


def adm(
    resolution: int,
    width: int,
    mult: Sequence[int],
    *,
    blocks: int = 3,
    attended: Sequence[int] = (32, 16, 8),
    classes: int = 0,
    augment: int = 0,
    channels: int = 3,
) -> Shapes:
    """Of ADM's network as EDM has it."""
    embedding = 4 * width
    names: Shapes = {"map_augment.weight": (width, augment)} if augment else {}
    names |= _both("map_layer0", (embedding, width)) | _both("map_layer1", (embedding, embedding))
    names |= {"map_label.weight": (embedding, classes)} if classes else {}

    def block(name: str, ins: int, outs: int, *, attention: bool = False, resampled: bool = False) -> Shapes:
        skip = (
            _both(f"{name}.skip", (outs, ins, 1, 1)) if ins != outs else {f"{name}.skip.resample_filter": (1, 1, 2, 2)} if resampled else {}
        )
        return _block(name, ins, outs, embedding, affine=2 * outs, attention=attention, taps=2 if resampled else 0) | skip

    def before(size: int, level: int, width_before: int, image: int) -> Shapes:
        start = f"enc.{size}x{size}"
        if level == 0:
            return _both(f"{start}_conv", (width_before, channels, 3, 3))
        return block(f"{start}_down", width_before, width_before, resampled=True)

    widths = [m * width for m in mult]
    more, last = _levels(resolution, widths, widths[0], channels, blocks, before, block, attended, everywhere=True)
    names |= more | {"out_norm.weight": (last,), "out_norm.bias": (last,)} | _both("out_conv", (channels, last, 3, 3))
    return {f"model.{name}": shape for name, shape in names.items()}


def _levels(resolution, widths, width, channels, blocks, before, block, attended, *, everywhere):  # type: ignore[no-untyped-def]
    """The encoder and the decoder, and the width at the end. `everywhere`: attention in all blocks of a level of the decoder."""
    names: Shapes = {}
    skips, image = [], channels
    for level, next_width in enumerate(widths):
        size = resolution >> level
        names |= before(size, level, width, image)
        image = width if level else channels
        skips.append(width)
        for number in range(blocks):
            names |= block(f"enc.{size}x{size}_block{number}", width, next_width, attention=size in attended)
            width = next_width
            skips.append(width)
    for level in reversed(range(len(widths))):
        start = f"dec.{resolution >> level}x{resolution >> level}"
        if level == len(widths) - 1:
            names |= block(f"{start}_in0", width, width, attention=True) | block(f"{start}_in1", width, width)
        else:
            names |= block(f"{start}_up", width, width, resampled=True)
        for number in range(blocks + 1):
            here = resolution >> level in attended and (everywhere or number == blocks)
            names |= block(f"{start}_block{number}", width + skips.pop(), widths[level], attention=here)
            width = widths[level]
    return names, width


def _block(name: str, ins: int, outs: int, embedding: int, *, affine: int, attention: bool, taps: int) -> Shapes:
    names: Shapes = {f"{name}.norm0.weight": (ins,), f"{name}.norm0.bias": (ins,)}
    names |= _both(f"{name}.conv0", (outs, ins, 3, 3)) | _both(f"{name}.affine", (affine, embedding))
    names |= {f"{name}.norm1.weight": (outs,), f"{name}.norm1.bias": (outs,)} | _both(f"{name}.conv1", (outs, outs, 3, 3))
    if attention:
        names |= {f"{name}.norm2.weight": (outs,), f"{name}.norm2.bias": (outs,)}
        names |= _both(f"{name}.qkv", (3 * outs, outs, 1, 1)) | _both(f"{name}.proj", (outs, outs, 1, 1))
    if taps:
        names[f"{name}.conv0.resample_filter"] = (1, 1, taps, taps)
        if affine == outs:  # the skip of DDPM++ has weights too
            names[f"{name}.skip.resample_filter"] = (1, 1, taps, taps)
    return names


def _both(name: str, weight: tuple[int, ...]) -> Shapes:
    return {f"{name}.weight": weight, f"{name}.bias": weight[:1]}
