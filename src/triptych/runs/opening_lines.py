"""The first lines of a training's log."""

from __future__ import annotations

from collections.abc import Iterator

from triptych.core.model import Model
from triptych.core.translation import VideoTranslator
from triptych.core.wording import counted
from triptych.data.images import Data
from triptych.engine.callables import BY_VALIDATION
from triptych.engine.checkpoint import Checkpoint
from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory
from triptych.engine.schedule import without_effect
from triptych.recipes.config import RunConfig
from triptych.runs.document import RunDocument

_LONG_WARMUP = 0.1
"""A warm-up that takes more of a run than this is warned of."""
_FEW_HELD_OUT = 20
_EVALUATIONS = 20  # of a run, where it would have some


def opening_lines(
    model: Model, data: Data, document: RunDocument, directory: RunDirectory, world: World, checkpoint: Checkpoint | None
) -> Iterator[str]:
    """What is trained, on what, and warnings about settings that rarely mean what they say."""
    settings = document.config.train
    parameters = sum(p.numel() for p in model.parameters())
    held_out = 0 if data.validation is None else len(data.validation)
    verb = "starts" if checkpoint is None else f"goes on at {checkpoint.images_seen} images"
    name = document.recipe or type(document.config.model).__name__.removesuffix("Config")
    yield f"{name} {verb}: run {directory.root}, {parameters:,} parameters, seed {settings.seed}, {settings.precision}"
    sample = "image" if data.spec.frames is None else "clip"
    classes = counted(data.spec.num_classes, "class", "classes") if data.spec.num_classes else "no classes"
    yield (
        f"{counted(len(data.train), f'training {sample}')} ({held_out:,} held out), {'x'.join(map(str, data.spec.height_and_width))}, "
        f"{counted(data.spec.channels, 'channel')}, {classes}; {counted(world.size, 'process', 'processes')} on {world.device.type}"
    )
    if world.is_main:
        yield f"images {document.images} (by keys, labels and some of the pixels; the same from a pack of them)"
    yield from data.notes
    by_validation = settings.best_by == BY_VALIDATION.by
    if held_out and model.validated and settings.validate_images and held_out < _FEW_HELD_OUT and by_validation:
        how = "by --data.validation-fraction, or more in the folder of held-out images"
        how = how if data.spec.latents is None else "when they are encoded, by triptych data encode --validation-fraction"
        few = f"warning: {counted(held_out, f'{sample} is', f'{sample}s are')} held out, too few to choose the best checkpoint by"
        yield f"{few}: hold more out ({how}), or judge by the samples"
    if by_validation and not model.validated and "sample" in document.config.model.verbs():
        every = settings.evaluate_every or max(1, settings.total_images // _EVALUATIONS)
        yield (
            "nothing chooses the best checkpoint, for this model has no loss on held-out images: "
            f"--train.evaluate-every {every} --train.best-by kid measures its samples, and warns when they become alike"
        )
    yield from short_clips(model, data)
    yield from long_warmup(document.config)
    yield from without_effect(document.config.optim, model.phases)


def short_clips(model: Model, data: Data) -> Iterator[str]:
    """Warnings where no training clip has as many frames as the model looks at, or one of its discriminators."""
    length = data.spec.clip_length
    if length is None or not isinstance(model, VideoTranslator):
        return
    short = f"warning: clips have at most {counted(length.most, 'frame')}, and"
    if length.most <= model.past_frames:
        yield (
            f"{short} a frame is made from the {model.past_frames} before it: what makes later frames is not learned; "
            f"set --data.length.most {model.past_frames + 1} or more"
        )
    if length.most < model.judged_span:
        yield (
            f"{short} a discriminator looks at {model.judged_span}, from first to last: it learns nothing; "
            f"set --data.length.most {model.judged_span} or more, or a lower --model.discriminator.temporal-scales"
        )


def long_warmup(config: RunConfig) -> Iterator[str]:
    """A warning where the learning rate is still rising after a tenth of the run."""
    total, optim = config.train.total_images, config.optim
    warmup = optim.warmup(total)
    if warmup > _LONG_WARMUP * total:
        reached = (
            "" if warmup <= total else f" and ends at {optim.learning_rate * total / warmup:.2g} in place of {optim.learning_rate:.2g}"
        )
        yield (
            f"warning: the learning rate rises over {round(warmup):,} of the run's {total:,} images{reached}: "
            f"train longer, or set --optim.warmup-images {max(1, round(_LONG_WARMUP * total))}"
        )
