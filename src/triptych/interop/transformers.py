"""Files of DiT and of SiT, whose transformers have the same names and shapes as ours but for `pos_embed`, a formula, which is compared.

Shapes say all but the number of heads, which follows from a published size, from the name of the model, or from `--num-heads`. A file is a
bare state dict, as published, or a checkpoint of a training with weights, average and settings.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from triptych.core.batch import DataSpec, LatentSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.files import explain
from triptych.core.model import Model, ModelConfig
from triptych.core.outline import without_weights
from triptych.core.reading import read_regular
from triptych.core.weight_files import check_fit, checked_weights, read_content
from triptych.data.config import AS_STORED, DataConfig
from triptych.diffusion.dit import DiT, DiTConfig, position_table
from triptych.diffusion.networks import NetworkConfig
from triptych.engine.config import OptimConfig, TrainConfig
from triptych.engine.ema import averaged_state
from triptych.interop.flags import LATENT_FLAGS, OriginalFlag, Value, checked_flags, command_line, numbers, parse_flags
from triptych.interop.programs import ImportRequest, LatentScale, refuse
from triptych.interop.shapes import Shapes
from triptych.recipes.config import RunConfig

SIZES: dict[str, tuple[int, int, int]] = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}
"""Width, depth and heads of the published sizes."""
PATCHES = (2, 4, 8)
LATENT_FACTOR = 8
"""Pixels of an image for one of its latent, along a side."""
_PUBLISHED = (4, 1000)  # channels and classes
POSITIONS = "pos_embed"
LABEL_DROPOUT = 0.1
"""Of the originals' training."""
OWN_FLAGS = "triptych: "
"""What the line with the flags for an import here begins with, in the text beside an exported file."""
_MOST_TEXT = 2**16
_FACTOR = 0.18215  # of their latents, 1 / the deviation of those of Stable Diffusion's autoencoder
_RATE = 0.9999  # of their average
_TABLE_ERROR = 1e-5  # of sines and cosines in float32; measured: 1e-7


def network_of(weights: Mapping[str, Tensor], given: Mapping[str, Value], *, program: str) -> tuple[DiTConfig, DataSpec]:
    """The network that the shapes and the flags describe together; its outputs are spare where there are twice as many as inputs.

    Raises ConfigError for flags that the shapes contradict, CheckpointError for weights of another network.
    """
    shapes = Shapes(weights)
    width, channels, patch, *_ = shapes.shape("x_embedder.proj.weight", axes=4)
    depth = shapes.count("blocks.", ".attn.qkv.weight")
    tokens = shapes.shape(POSITIONS, axes=3)[1]
    rows = round(tokens**0.5)
    outputs = shapes.shape("final_layer.linear.weight", axes=2)[0] // patch**2
    if rows**2 != tokens or outputs not in (channels, 2 * channels):
        raise CheckpointError(f"the file is of another network: {tokens} positions, {outputs} output channels for {channels} of the input")
    classes = shapes.shape("y_embedder.embedding_table.weight", axes=2)[0] - 1
    if not classes:
        raise CheckpointError("the file is of another network: y_embedder.embedding_table has a row for no class alone")
    size = rows * patch
    for name, has in (("image-size", size * LATENT_FACTOR), ("num-classes", classes)):
        if given.get(name, has) != has:
            raise ConfigError(f"--{name}", f"the file has {has}, got {given[name]}")
    named = _named_heads(given.get("model"), program=program, width=width, depth=depth, patch=patch)
    heads = _heads(given.get("num-heads"), named, width=width, depth=depth)
    try:
        network = DiTConfig(patch=patch, width=width, depth=depth, heads=heads, spare_outputs=outputs == 2 * channels)
        return network, DataSpec(image_size=size, channels=channels, num_classes=classes)
    except ConfigError as error:  # of the file, not of a flag
        raise CheckpointError(f"the file is of another network: {error}") from None


def _named_heads(name: Value | None, *, program: str, width: int, depth: int, patch: int) -> int | None:
    """Of the model whose name was given, if one was."""
    if name is None:
        return None
    names = {f"{program}-{size}/{side}": (*numbers, side) for size, numbers in SIZES.items() for side in PATCHES}
    if name not in names:
        raise ConfigError("--model", f"got {name!r}, expected one of {', '.join(names)}")
    wide, deep, heads, side = names[str(name)]
    if (wide, deep, side) != (width, depth, patch):
        raise ConfigError("--model", f"the file has width {width}, depth {depth} and patches of {patch}, got {name}")
    return heads


def _heads(given: Value | None, named: int | None, *, width: int, depth: int) -> int:
    """The heads that were given as a flag, which may be one's own; else those of the model that was named, or of a published size."""
    published = named or next((heads for wide, deep, heads in SIZES.values() if (wide, deep) == (width, depth)), None)
    heads = published if given is None else int(given)
    if heads is None:
        sizes = ", ".join(f"{size} of {wide} and {deep}" for size, (wide, deep, _) in SIZES.items())
        wanted = f"nothing in the file says how many heads that has: give --flags '--num-heads N' (published sizes: {sizes})"
        raise CheckpointError(f"has width {width} and depth {depth}, and {wanted}")
    if heads < 1 or width % heads:
        raise ConfigError("--num-heads", f"got {heads}, expected a divisor of the width {width}")
    if named not in (None, heads):
        raise ConfigError("--num-heads", f"got {heads}, but the model that --model names has {named}: leave one of them out")
    return heads


def filled(config: ModelConfig, spec: DataSpec, weights: Mapping[str, Tensor]) -> Model:
    """The model with a file's weights, in evaluation mode; a CheckpointError names the first tensor that is wrong."""
    with without_weights():
        model = config.build(spec)
    network = cast(DiT, model.get_submodule("network"))
    expected = dict(network.state_dict())
    height, width = network.image_size
    patches = (height // network.config.patch) * (width // network.config.patch)
    check_fit(expected | {POSITIONS: torch.empty(1, patches, network.config.width, device="meta")}, weights)
    model.to_empty(device="cpu")  # now that the file is known to hold so many numbers
    table = positions(network)
    if (weights[POSITIONS].float() - table).abs().max() > max(_TABLE_ERROR, torch.finfo(weights[POSITIONS].dtype).eps):
        raise CheckpointError(f"{POSITIONS} is not the table of sines and cosines of its size, so this is another network")
    network.load_state_dict({name: weights[name] for name in expected})
    return model.eval()


def positions(network: DiT) -> Tensor:
    """The table of positions of the network's images, as files have it: float32 (1, patches, width)."""
    height, width = network.image_size
    side = network.config.patch
    return position_table(height // side, width // side, network.config.width).float()


# Files ----------------------------------------------------------------------------------------------------------------


def read(
    request: ImportRequest, flags: Mapping[str, OriginalFlag], *, program: str, beside: str | None = None
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Value]]:
    """The state dicts of a file ("model", and "ema" of a training), and the flags that it has and that were given.

    `beside`: the ending of a text beside the file that has further ones, as an export writes it.
    Raises ConfigError for settings that have no use here, CheckpointError for other files.
    """
    refuse(request, ("ema", "ema_rate", "checkpoint", "data", "processes"), f"{program}'s files have their average with them")
    states, theirs = _parts(read_content(request.file, inert=(Namespace,)), flags)
    kept = {} if beside is None else _flags_beside(request, request.file.with_suffix(beside), flags)
    return states, {**kept, **theirs, **_given(request, flags, program=program)}


def _flags_beside(request: ImportRequest, text: Path, flags: Mapping[str, OriginalFlag]) -> dict[str, Value]:
    """The flags in a text; none where it is not there, or has none."""
    if not text.is_file():
        return {}
    try:
        lines = read_regular(text, most=_MOST_TEXT).decode(errors="replace").splitlines()
        line = next((line.removeprefix(OWN_FLAGS) for line in lines if line.startswith(OWN_FLAGS)), None)
        found = {} if line is None else parse_flags(line, flags)
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"cannot use {text}, which lies beside {request.file}: {explain(error)}") from None
    if line is not None:
        request.report(f"flags of {text}: {line}")
    return found


def _parts(content: Any, flags: Mapping[str, OriginalFlag]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Value]]:
    """The state dicts of a file, and the flags of the training that it is from."""
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping):
        return {"model": checked_weights(content)}, {}
    states = {name: checked_weights(content[name], name=name) for name in ("model", "ema") if isinstance(content.get(name), Mapping)}
    args = content.get("args")
    theirs = vars(args) if isinstance(args, Namespace) else args if isinstance(args, Mapping) else {}
    known = {name: value for name in flags if (value := theirs.get(name.replace("-", "_"))) is not None}
    try:
        return states, checked_flags(known, flags)
    except ConfigError as error:
        raise CheckpointError(f"its settings (args) are none of this program: {error}") from None


def _given(request: ImportRequest, flags: Mapping[str, OriginalFlag], *, program: str) -> dict[str, Value]:
    if isinstance(request.flags, Mapping):
        return checked_flags({name.replace("_", "-"): value for name, value in request.flags.items()}, flags)
    try:
        return parse_flags(request.flags or "", flags)
    except ConfigError as error:
        raise ConfigError(
            error.setting, f"{error.reason} ({program}'s flags here are {', '.join(f'--{name}' for name in flags)})"
        ) from None


def files_of(config: ModelConfig, spec: DataSpec, states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """The checkpoint of a run with these state dicts. Raises CheckpointError as `filled` does."""
    files = {"model": dict(filled(config, spec, states["model"]).state_dict())}
    if "ema" in states:
        files[f"ema-{_RATE}"] = averaged_state(filled(config, spec, states["ema"]))
    return {name: {key: tensor.detach() for key, tensor in tensors.items()} for name, tensors in files.items()}


def run_of(config: ModelConfig, spec: DataSpec) -> RunConfig:
    """A model and the originals' training."""
    return RunConfig(
        model=config,
        data=DataConfig(image_size=spec.image_size).updated(AS_STORED),
        train=TrainConfig(total_images=1_800_000_000, batch_size=256, ema_rates=(_RATE,), ema_warmup=False),
        optim=OptimConfig(learning_rate=1e-4),
    )


def scale_of(spec: DataSpec, given: Mapping[str, Value]) -> LatentScale:
    """How latents became samples: as `given`, else as in the originals' training. Raises ConfigError for flags that do not fit."""
    found: dict[str, tuple[float, ...]] = {}
    for name, usual in (("latent-mean", 0.0), ("latent-std", 1 / _FACTOR)):
        values = numbers(str(given.get(name, ""))) or (usual,) * spec.channels
        if len(values) != spec.channels or not all(map(math.isfinite, values)):
            raise ConfigError(f"--{name}", f"got {given[name]}, expected {spec.channels} numbers, one for each channel")
        found[name] = tuple(map(float, values))
    scaled_to, darkest = (float(given.get(flag.name, flag.default)) for flag in LATENT_FLAGS[2:])
    for name, values in (("latent-std", found["latent-std"]), ("latent-scaled-to", (scaled_to,))):
        if not all(0 < value < math.inf for value in values):
            raise ConfigError(f"--{name}", f"got {given[name]}, expected numbers above 0")
    if not -1 <= darkest < 1:
        raise ConfigError("--latent-darkest", f"got {darkest}, expected a number from -1 to below 1")
    return LatentScale(mean=found["latent-mean"], std=found["latent-std"], scaled_to=scaled_to, darkest=darkest)


def scale_flags(latents: LatentSpec) -> dict[str, str]:
    """The flags that say how latents became samples; every digit."""
    values = {"mean": latents.mean, "std": latents.std, "scaled-to": (latents.scaled_to,), "darkest": (latents.darkest,)}
    return {f"latent-{name}": ",".join(map(repr, each)) for name, each in values.items()}


def own_flags(flags: Mapping[str, Any], spec: DataSpec) -> str:
    """The line for the text beside an exported file, with which it is imported here as it was."""
    return OWN_FLAGS + command_line({**flags, **({} if spec.latents is None else scale_flags(spec.latents))})


def recognised(
    request: ImportRequest,
    network: NetworkConfig,
    spec: DataSpec,
    given: Mapping[str, Value],
    *,
    program: str,
    average: bool,
    licence: str,
) -> str | None:
    """Says what a file is. `licence`: that of the published ones, which comes back for weights of their sizes; None: others, one's own."""
    what = "a checkpoint of a training" if average else "weights alone"
    makes = "latents" if spec.undecoded else "images, or latents,"
    request.report(f"{request.file} is {what} of {program}: {makes} of {spec.channels} x {spec.image_size} x {spec.image_size}")
    assert isinstance(network, DiTConfig)
    published = (network.width, network.depth, network.heads) in SIZES.values() and (spec.channels, spec.num_classes) == _PUBLISHED
    if not published:
        if not any(flag.name in given for flag in LATENT_FLAGS):
            means = f"latents are taken to be multiplied by {_FACTOR}, as those of the published weights"
            request.report(f"{means}; --flags '--latent-mean A,B,... --latent-std A,B,...' says otherwise")
        return None
    request.report(f"licence of the published weights: {licence}")
    return licence
