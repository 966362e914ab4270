"""The names and shapes of the originals' tensors, from the published formulas alone: nothing here knows of our networks."""

from __future__ import annotations

from collections.abc import Sequence

Shapes = dict[str, tuple[int, ...]]


def r3gan_generator(
    widths: Sequence[int], groups: Sequence[int], *, classes: int = 0, z: int = 64, embedding: int = 64, channels: int = 3
) -> Shapes:
    """Of R3GAN's generator; its widths and groups from the lowest resolution on."""
    first = "Model.MainLayers.0.Layers.0"
    names: Shapes = {f"{first}.Basis": (widths[0], 4, 4), f"{first}.LinearLayer.weight": (widths[0], z + (embedding if classes else 0))}
    for stage, width in enumerate(widths):
        layers = f"Model.MainLayers.{stage}.Layers"
        if stage:
            names[f"{layers}.0.Resampler.Kernel"] = (4, 4)
            if width != widths[stage - 1]:
                names[f"{layers}.0.LinearLayer.Layer.weight"] = (width, widths[stage - 1], 1, 1)
        for block in (1, 2):
            names |= _r3gan_block(f"{layers}.{block}", width, groups[stage])
    names["Model.AggregationLayer.Layer.weight"] = (channels, widths[-1], 1, 1)
    return names | ({"Model.EmbeddingLayer.weight": (embedding, classes)} if classes else {})


def r3gan_discriminator(widths: Sequence[int], groups: Sequence[int], *, classes: int = 0, channels: int = 3) -> Shapes:
    """Of R3GAN's discriminator; widths and groups from the lowest resolution on, as the generator's."""
    widths, groups = list(reversed(widths)), list(reversed(groups))
    names: Shapes = {"Model.ExtractionLayer.Layer.weight": (widths[0], channels, 1, 1)}
    for stage, width in enumerate(widths):
        layers = f"Model.MainLayers.{stage}.Layers"
        for block in (0, 1):
            names |= _r3gan_block(f"{layers}.{block}", width, groups[stage])
        if stage < len(widths) - 1:
            names[f"{layers}.2.Resampler.Kernel"] = (4, 4)
            if width != widths[stage + 1]:
                names[f"{layers}.2.LinearLayer.Layer.weight"] = (widths[stage + 1], width, 1, 1)
    last, width = f"Model.MainLayers.{len(widths) - 1}.Layers.2", widths[-1]
    names |= {f"{last}.Basis.weight": (width, 1, 4, 4), f"{last}.LinearLayer.weight": (width if classes else 1, width)}
    return names | ({"Model.EmbeddingLayer.weight": (width, classes)} if classes else {})


def _r3gan_block(layer: str, width: int, groups: int) -> Shapes:
    return {
        f"{layer}.LinearLayer1.Layer.weight": (2 * width, width, 1, 1),
        f"{layer}.LinearLayer2.Layer.weight": (2 * width, 2 * width // groups, 3, 3),
        f"{layer}.LinearLayer3.Layer.weight": (width, 2 * width, 1, 1),
        f"{layer}.NonLinearity1.Bias": (2 * width,),
        f"{layer}.NonLinearity2.Bias": (2 * width,),
    }


def stylegan2_generator(
    resolution: int, *, base: int, mapping: int, classes: int = 0, most: int = 512, z: int = 512, w: int = 512, channels: int = 3
) -> Shapes:
    """Of StyleGAN2's generator; `base`: fmaps times 32768."""
    names: Shapes = {"mapping.w_avg": (w,), **_mapping(mapping, z=z, w=w, classes=classes)}
    side = 4
    while side <= resolution:
        block, width = f"synthesis.b{side}", min(base // side, most)
        names[f"{block}.resample_filter"] = (4, 4)
        if side == 4:
            names[f"{block}.const"] = (width, 4, 4)
        else:
            names |= _synthesis(f"{block}.conv0", min(2 * base // side, most), width, side=side, w=w)
        names |= _synthesis(f"{block}.conv1", width, width, side=side, w=w)
        names |= {f"{block}.torgb.weight": (channels, width, 1, 1), f"{block}.torgb.bias": (channels,)}
        names |= {f"{block}.torgb.affine.weight": (width, w), f"{block}.torgb.affine.bias": (width,)}
        side *= 2
    return names


def stylegan2_discriminator(
    resolution: int,
    *,
    base: int,
    classes: int = 0,
    most: int = 512,
    skips: bool = True,
    statistics: int = 1,
    mapping: int = 8,
    channels: int = 3,
) -> Shapes:
    """Of StyleGAN2's discriminator. `skips`: with residual blocks; `mapping`: layers behind the embedding of labels."""
    names: Shapes = {}
    side = resolution
    while side > 4:
        block, width, next_width = f"b{side}", min(base // side, most), min(2 * base // side, most)
        if side == resolution:
            names |= _layer(f"{block}.fromrgb", (width, channels, 1, 1))
        names |= _layer(f"{block}.conv0", (width, width, 3, 3)) | _layer(f"{block}.conv1", (next_width, width, 3, 3))
        if skips:
            names |= _layer(f"{block}.skip", (next_width, width, 1, 1), bias=False)
        names[f"{block}.resample_filter"] = (4, 4)
        side //= 2
    width = min(base // 4, most)
    names |= _layer("b4.conv", (width, width + statistics, 3, 3))
    names |= {"b4.fc.weight": (width, width * 16), "b4.fc.bias": (width,)}
    names |= {"b4.out.weight": (width if classes else 1, width), "b4.out.bias": (width if classes else 1,)}
    return names | (_mapping(mapping, z=0, w=width, classes=classes) if classes else {})


def _mapping(layers: int, *, z: int, w: int, classes: int) -> Shapes:
    names: Shapes = {"mapping.embed.weight": (w, classes), "mapping.embed.bias": (w,)} if classes else {}
    for layer in range(layers):
        names[f"mapping.fc{layer}.weight"] = (w, z + (w if classes else 0) if layer == 0 else w)
        names[f"mapping.fc{layer}.bias"] = (w,)
    return names


def _synthesis(layer: str, width: int, next_width: int, *, side: int, w: int) -> Shapes:
    return {
        f"{layer}.weight": (next_width, width, 3, 3),
        f"{layer}.bias": (next_width,),
        f"{layer}.affine.weight": (width, w),
        f"{layer}.affine.bias": (width,),
        f"{layer}.noise_const": (side, side),
        f"{layer}.noise_strength": (),
        f"{layer}.resample_filter": (4, 4),
    }


def _layer(layer: str, weight: tuple[int, ...], *, bias: bool = True) -> Shapes:
    return {f"{layer}.weight": weight, f"{layer}.resample_filter": (4, 4), **({f"{layer}.bias": weight[:1]} if bias else {})}


def edm2(width: int, *, channels: int, classes: int = 1000, size: int = 64, mults: Sequence[int] = (1, 2, 3, 4), blocks: int = 3) -> Shapes:
    """Of EDM2's network; attention at 16 and 8 pixels."""
    widths = [mult * width for mult in mults]
    embedding = max(widths)
    names: Shapes = {"unet.emb_fourier.freqs": (width,), "unet.emb_fourier.phases": (width,), "unet.emb_noise.weight": (embedding, width)}
    names |= {"logvar_fourier.freqs": (128,), "logvar_fourier.phases": (128,), "logvar_linear.weight": (1, 128)}
    names |= {"unet.out_gain": (), "unet.out_conv.weight": (channels, width, 3, 3)}
    names |= {"unet.emb_label.weight": (embedding, classes)} if classes else {}
    skips: list[int] = []
    before = width
    for level, wide in enumerate(widths):
        side = size >> level
        if level == 0:
            names[f"unet.enc.{side}x{side}_conv.weight"] = (wide, channels + 1, 3, 3)
        else:
            names |= _edm2_block(f"unet.enc.{side}x{side}_down", before, before, embedding)
        skips.append(before)
        for block in range(blocks):
            attends = side in (16, 8)
            names |= _edm2_block(f"unet.enc.{side}x{side}_block{block}", before, wide, embedding, attends=attends)
            before = wide
            skips.append(wide)
    for level, wide in reversed(list(enumerate(widths))):
        side = size >> level
        if level == len(widths) - 1:
            names |= _edm2_block(f"unet.dec.{side}x{side}_in0", wide, wide, embedding, attends=True)
            names |= _edm2_block(f"unet.dec.{side}x{side}_in1", wide, wide, embedding)
        else:
            names |= _edm2_block(f"unet.dec.{side}x{side}_up", before, before, embedding)
        for block in range(blocks + 1):
            joined = before + skips.pop()
            name, attends = f"unet.dec.{side}x{side}_block{block}", side in (16, 8)
            names |= _edm2_block(name, joined, wide, embedding, decoder=True, attends=attends)
            before = wide
    return names


def _edm2_block(name: str, ins: int, outs: int, embedding: int, *, decoder: bool = False, attends: bool = False) -> Shapes:
    names: Shapes = {
        f"{name}.emb_gain": (),
        f"{name}.emb_linear.weight": (outs, embedding),
        f"{name}.conv_res0.weight": (outs, ins if decoder else outs, 3, 3),
        f"{name}.conv_res1.weight": (outs, outs, 3, 3),
    }
    names |= {f"{name}.conv_skip.weight": (outs, ins, 1, 1)} if ins != outs else {}
    return names | ({f"{name}.attn_qkv.weight": (3 * outs, outs, 1, 1), f"{name}.attn_proj.weight": (outs, outs, 1, 1)} if attends else {})
