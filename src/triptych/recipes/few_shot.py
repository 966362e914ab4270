"""Recipes of few-shot translation: FUNIT and COCO-FUNIT.

The published models were trained by eight processes of 8 images each, for 150,000 steps, at a learning rate that halves after 100,000, in
float16, for which there is bf16 here. How many classes there are, the data says. The published papers' figures are of other features than
any here, so none is quoted.
"""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import AS_STORED
from triptych.data.few_shot import FewShotDataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.gans.coco_funit import COCOFUNITGeneratorConfig
from triptych.gans.funit import FUNITConfig, FUNITDiscriminatorConfig, FUNITGeneratorConfig
from triptych.gans.init import InitConfig
from triptych.recipes.config import RunConfig

_STEP = 64
"""Images of a step of the published models, over all processes."""


def funit_omniglot() -> RunConfig:
    """FUNIT on handwritten characters, 32x32, grey: a quarter of an hour on two CPU cores.

    Each character is a class, and the Greek ones are held out: the model draws a character where and how the content image has its own,
    after one drawing of it. data.path is a folder or archive of Omniglot, ALPHABET/CHARACTER/*.png.
    """
    return RunConfig(
        model=FUNITConfig(
            initial=InitConfig(kind="none"),
            generator=FUNITGeneratorConfig(
                num_filters=16, num_res_blocks=1, num_downsamples_content=3, num_downsamples_style=4, mlp_filters=128
            ),
            discriminator=FUNITDiscriminatorConfig(num_filters=16, max_num_filters=128, num_layers=4),
        ),
        data=FewShotDataConfig(image_size=32, channels=1, class_folder="deepest", held_out=("Greek",), flip=False, augment="shift"),
        train=TrainConfig(
            total_images=48_000,
            batch_size=8,
            compile="off",
            ema_rates=(0.999,),
            checkpoint_every=8_000,
            sample_every=8_000,
            sample_count=24,
            validate_every=8_000,
            validate_images=480,
        ),
        optim=OptimConfig(name="adam", learning_rate=2e-4, betas=(0.0, 0.999)),
        log=LogConfig(every=800),
    )


def coco_funit_omniglot() -> RunConfig:
    """COCO-FUNIT on handwritten characters, 32x32, grey: a quarter of an hour on two CPU cores.

    All else as in funit-omniglot.
    """
    return _content_conditioned(funit_omniglot(), style_bias_dims=128)


def funit_animal_faces() -> RunConfig:
    """FUNIT on faces of animals, 256x256, 121.0M + 92.0M parameters.

    The discriminator's are those for the 149 classes of its published weights. Of the classes of a folder without train/ and val/ a share
    is held out, which the discriminator does not know: --data.validation-fraction 0 trains on all of them. The original trained on 8 GPUs
    of 32 GB for about a week. data.path is a folder or archive with a folder for each class, or with such folders in train/ and val/.
    """
    return RunConfig(
        model=FUNITConfig(initial=InitConfig(kind="none")),
        data=FewShotDataConfig(image_size=256, crop="random", resize=270, scale=0.1).updated(AS_STORED),
        train=TrainConfig(
            total_images=150_000 * _STEP,
            batch_size=_STEP,
            precision="bf16",
            ema_rates=(0.999,),
            ema_warmup=False,
            ema_start=1_000 * _STEP,
            checkpoint_every=5_000 * _STEP,
            sample_every=1_000 * _STEP,
            sample_count=16,
            validate_every=5_000 * _STEP,
        ),
        optim=OptimConfig(
            name="adam", learning_rate=1e-4, betas=(0.0, 0.999), schedule="step", decay_every=100_000 * _STEP, decay_factor=0.5
        ),
        log=LogConfig(every=50 * _STEP),
    )


def coco_funit_animal_faces() -> RunConfig:
    """COCO-FUNIT on faces of animals, 256x256, 121.6M + 92.0M parameters.

    All else as in funit-animal-faces.
    """
    return _content_conditioned(funit_animal_faces())


def coco_funit_mammals() -> RunConfig:
    """COCO-FUNIT on mammals, 256x256, 121.6M + 92.2M parameters.

    The discriminator's are those for the 305 classes of its published weights, with --data.validation-fraction 0; all else as in
    funit-animal-faces. The original also turned mammals by up to 4 degrees, and squeezed them to squares before they were cut.
    """
    return coco_funit_animal_faces()


def _content_conditioned(recipe: RunConfig, **settings: int) -> RunConfig:
    """The recipe with the generator of COCO-FUNIT, which has `settings` of its own."""
    model = recipe.model
    assert isinstance(model, FUNITConfig)
    generator = COCOFUNITGeneratorConfig.from_dict(model.generator.to_dict() | settings)
    return replace(recipe, model=replace(model, generator=generator))
