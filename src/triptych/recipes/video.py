"""Recipes of vid2vid, few-shot vid2vid and world-consistent vid2vid: clips made from clips of label maps.

The published model is that of NVlabs/imaginaire. Its counts are in epochs of eight processes; here they are clips: 2,975 in an epoch of
Cityscapes. Its moving average moves with every frame, here once an iteration, so that its rate is lower; those of the small recipes follow
sooner still: their few hundred iterations of clips are all in which the flow network learns. data.path holds train/ and val/
with a folder for each type, and in it one for each clip; model.perceptual.weights is a file of VGG-19's weights with the names of
torchvision.
"""

from __future__ import annotations

from dataclasses import replace

from triptych.core.batch import ClipLength
from triptych.data.clips import ClipDataConfig
from triptych.data.config import AS_STORED
from triptych.data.pans import PanDataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.gans.crops import CropConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.fs_vid2vid import FewShotVid2VidConfig
from triptych.gans.fs_vid2vid_networks import FewShotGeneratorConfig
from triptych.gans.init import InitConfig
from triptych.gans.perceptual import PerceptualConfig
from triptych.gans.vid2vid import Vid2VidConfig
from triptych.gans.video_discriminators import VideoDiscriminatorConfig
from triptych.gans.video_networks import EmbeddingConfig, FlowNetworkConfig, Vid2VidGeneratorConfig, WCVid2VidGeneratorConfig
from triptych.gans.wc_vid2vid import WCVid2VidConfig
from triptych.recipes.config import RunConfig

_CITYSCAPES = 2_975
_CITYSCAPES_FRAMES = 30  # of each clip
"""Training clips."""
_MANNEQUIN = 3_040
"""Training clips of the Mannequin Challenge, as the paper divides it."""
_FACE_FORENSICS = 704
"""Training clips of FaceForensics, as the paper divides it."""
_ONE_DANCER = 6_000
"""Frames of one video of three minutes, each of which begins a clip of an epoch."""
_DANCES = 15_000
"""Training clips of dances from YouTube, about as many as the paper of few-shot vid2vid had."""
_PROCESSES = 8
_SMALL_FLOW = FlowNetworkConfig(num_filters=8, num_downsamples=3, num_res_blocks=2, multiplier=10.0, norm="none", cost_radius=3)
_GROWING = ClipLength(first=4, alone=2_000, most=8, double_every=1_000)
_SMALL = PatchDiscriminatorConfig(kernel_size=4, num_filters=16, num_layers=3, norm="instance", weight_norm="spectral")


def vid2vid_cityscapes() -> RunConfig:
    """vid2vid on the clips of Cityscapes, 512x1024, 347.0M parameters, as imaginaire published it.

    35 classes: data.path has the folders images and labels. Clips of 4 frames at first and of 16 in the end; the flow is learned from that
    of RAFT where model.raft.weights names its file, else from that of Lucas and Kanade.
    """
    return RunConfig(
        model=Vid2VidConfig(perceptual=PerceptualConfig(num_scales=3)),
        data=ClipDataConfig(
            maps=("labels",),
            num_classes=(35,),
            image_size=512,
            width=1024,
            crop="random",
            scale=0.2,
            length=ClipLength(first=4, most=16, double_every=20 * _CITYSCAPES),
        ).updated(AS_STORED),
        train=TrainConfig(
            total_images=80 * _CITYSCAPES,
            batch_size=2 * _PROCESSES,
            compile="off",
            ema_rates=(0.99,),
            ema_warmup=False,
            ema_start=125 * 2 * _PROCESSES,
            checkpoint_every=5 * _CITYSCAPES,
            sample_every=8_000,
            sample_count=8,
            validate_every=5 * _CITYSCAPES,
            validate_images=64,
        ),
        optim=OptimConfig(name="adam", learning_rate=2e-4, betas=(0.5, 0.999), schedule="step", decay_every=60 * _CITYSCAPES),
        log=LogConfig(every=1_600),
    )


def vid2vid_maps64() -> RunConfig:
    """vid2vid on small clips with maps of 12 classes, 64x64, without a perceptual network: under an hour on two CPU cores.

    data.path holds train/ and val/, or neither, with images/ (frames) and labels/ (maps of the classes 0 to 11), each with a folder a clip.
    """
    return RunConfig(
        model=Vid2VidConfig(
            generator=Vid2VidGeneratorConfig(
                num_filters=8,
                max_num_filters=64,
                num_layers=4,
                num_downsamples=2,
                combined=2,
                embedding=EmbeddingConfig(num_filters=8, num_downsamples=3),
                flow=_SMALL_FLOW,
                frames=2,
                blend=True,
                flow_apart=True,
            ),
            discriminator=VideoDiscriminatorConfig(patch=_SMALL, temporal=_SMALL, temporal_scales=1),
            perceptual_weight=0.0,
            l1_weight=10.0,
            warping_weight=20.0,
            initial=InitConfig(gain=1.0),
        ),
        data=ClipDataConfig(maps=("labels",), num_classes=(12,), image_size=64, length=_GROWING, enlarge=True),
        train=TrainConfig(
            total_images=4_000,
            batch_size=4,
            compile="off",
            ema_rates=(0.95,),
            ema_start=400,
            checkpoint_every=1_000,
            sample_every=500,
            sample_count=8,
            validate_every=1_000,
            validate_images=32,
        ),
        optim=OptimConfig(name="adam", learning_rate=4e-4, betas=(0.5, 0.999), schedule="linear", decay_start=2_000),
        log=LogConfig(every=100),
    )


def vid2vid_dancing() -> RunConfig:
    """vid2vid on one person who dances, 512x512, 226.9M parameters, with the settings that imaginaire published.

    data.path has the folders images and limbs: maps of people with a channel for each limb (triptych data draw --kind people --form limbs).
    Faces and hands are judged by discriminators of their own. Its epochs are those of one video of 6,000 frames.
    """
    recipe = vid2vid_cityscapes()
    patch = PatchDiscriminatorConfig(kernel_size=4, num_filters=32, num_layers=4, norm="instance", weight_norm="spectral")
    part, flow = CropConfig(weight=10.0), FlowNetworkConfig(num_downsamples=3, multiplier=20.0)
    return replace(
        recipe,
        model=Vid2VidConfig(
            generator=Vid2VidGeneratorConfig(label_input=False, flow=flow),
            discriminator=VideoDiscriminatorConfig(patch=patch, face=part, hand=part),
            discriminator_rate=4.0,
            positive_conditions=True,
        ),
        data=ClipDataConfig(
            limbs="limbs",
            drop_parts=0.05,
            image_size=512,
            crop="random",
            scale=0.2,
            flip=False,
            length=ClipLength(first=4, most=16, double_every=_ONE_DANCER),
        ).updated(AS_STORED),
        train=replace(
            recipe.train,
            total_images=5 * _ONE_DANCER,
            checkpoint_every=_ONE_DANCER,
            sample_every=16_000,
            validate_every=_ONE_DANCER,
        ),
        optim=OptimConfig(name="adam", learning_rate=1e-4, betas=(0.0, 0.999)),
        log=LogConfig(every=16_000),
    )


def fs_vid2vid_faceforensics() -> RunConfig:
    """Few-shot vid2vid on the talking faces of FaceForensics, 512x512, 91.1M parameters, as imaginaire published it.

    data.path has the folders images and landmarks: the lines of a face, drawn white on black, and the face cut out of both. Of whole frames
    data.cut_out cuts it out.
    """
    recipe = vid2vid_cityscapes()
    patch = PatchDiscriminatorConfig(kernel_size=4, num_filters=32, num_layers=4, norm="instance", weight_norm="spectral")
    clips = 3 * _PROCESSES
    return replace(
        recipe,
        model=FewShotVid2VidConfig(
            discriminator=VideoDiscriminatorConfig(patch=patch, temporal_frames=2),
            discriminator_rate=4.0,
            perceptual=PerceptualConfig(num_scales=3),
            positive_conditions=True,
        ),
        data=ClipDataConfig(
            conditions=("landmarks",),
            image_size=512,
            references=1,
            flip=False,
            length=ClipLength(first=4, most=16, double_every=50 * _FACE_FORENSICS),
        ).updated(AS_STORED),
        train=replace(
            recipe.train,
            total_images=200 * _FACE_FORENSICS,
            batch_size=clips,
            ema_start=125 * clips,
            checkpoint_every=25 * _FACE_FORENSICS,
            sample_every=24_000,
            validate_every=25 * _FACE_FORENSICS,
        ),
        optim=replace(recipe.optim, learning_rate=1e-4, betas=(0.0, 0.999), decay_every=100 * _FACE_FORENSICS),
        log=LogConfig(every=2_400),
    )


def fs_vid2vid_dancing() -> RunConfig:
    """Few-shot vid2vid on people who dance, 512x256, 91.1M parameters, with the settings that imaginaire published.

    data.path has the folders images, densepose (DensePose's maps) and poses (OpenPose, drawn in colours by triptych data draw --kind people
    --face False). The person is cut out of all; the generator sees no head, which is to be taken from the reference. Published clips were
    made after finetuning, triptych translate --finetune 100.
    """
    recipe = fs_vid2vid_faceforensics()
    assert isinstance(recipe.model, FewShotVid2VidConfig)
    clips = 6 * _PROCESSES
    return replace(
        recipe,
        model=replace(
            recipe.model,
            discriminator=replace(recipe.model.discriminator, face=CropConfig(weight=10.0)),
            positive_conditions=False,
            people=True,
            hide_head=True,
        ),
        data=ClipDataConfig(
            densepose="densepose",
            conditions=("poses",),
            drop_parts=0.05,
            cut_out="person",
            image_size=512,
            width=256,
            references=1,
            flip=False,
            length=ClipLength(first=4, most=16, double_every=5 * _DANCES),
        ).updated(AS_STORED),
        train=replace(
            recipe.train,
            total_images=20 * _DANCES,
            batch_size=clips,
            ema_rates=(),
            ema_start=0,
            checkpoint_every=5 * _DANCES,
            sample_every=100 * clips,
            validate_every=5 * _DANCES,
        ),
        optim=replace(recipe.optim, decay_every=10 * _DANCES),
        log=LogConfig(every=100 * clips),
    )


def fs_vid2vid_maps64() -> RunConfig:
    """Few-shot vid2vid on small clips with maps of 12 classes, 64x64, without a perceptual network: for two CPU cores.

    data.path holds train/ and val/, or neither, with images/ (frames) and labels/ (maps of the classes 0 to 11), each with a folder a clip.
    A clip shall look like one of its other frames; `triptych translate --style` then takes a picture of something new, with its map.
    """
    small = vid2vid_maps64()
    assert isinstance(small.data, ClipDataConfig)
    return replace(
        small,
        model=FewShotVid2VidConfig(
            generator=FewShotGeneratorConfig(
                num_filters=8,
                max_num_filters=64,
                num_downsamples=4,
                generated=3,
                embedding=EmbeddingConfig(num_filters=8, num_downsamples=4),
                flow=FlowNetworkConfig(num_filters=8, num_downsamples=3, num_res_blocks=2, multiplier=10.0),
            ),
            discriminator=VideoDiscriminatorConfig(patch=_SMALL, temporal=_SMALL, temporal_scales=1),
            perceptual_weight=0.0,
            l1_weight=10.0,
            initial=InitConfig(gain=1.0),
        ),
        data=replace(small.data, references=1, length=ClipLength(first=4, most=8, double_every=2_000)),
    )


def wc_vid2vid_cityscapes() -> RunConfig:
    """World-consistent vid2vid on the clips of Cityscapes, 512x1024, 633.5M parameters, with the settings that imaginaire published.

    35 classes: data.path has the folders images, labels and points, a map of the point of the scene that each pixel shows. Published runs
    have their first two frames made by a SPADE of its own; here the generator makes them itself.
    """
    recipe = vid2vid_cityscapes()
    return replace(
        recipe,
        model=WCVid2VidConfig(discriminator_rate=4.0),
        data=replace(
            recipe.data,
            points="points",
            crop="center",
            scale=None,
            length=ClipLength(first=4, most=_CITYSCAPES_FRAMES, double_every=20 * _CITYSCAPES),
        ),
        train=replace(
            recipe.train,
            total_images=100 * _CITYSCAPES,
            batch_size=_PROCESSES,
            ema_rates=(),
            checkpoint_every=2 * _CITYSCAPES,
            sample_every=4_000,
            validate_every=2 * _CITYSCAPES,
        ),
        optim=replace(recipe.optim, learning_rate=1e-4, betas=(0.0, 0.999), decay_every=40 * _CITYSCAPES),
        log=LogConfig(every=800),
    )


def wc_vid2vid_mannequin() -> RunConfig:
    """World-consistent vid2vid on clips of people who stand still, 512x1024, 209.9M parameters, as imaginaire published it.

    35 channels: data.path has the folders images, points, seg_maps-densepose (25 parts), depth_maps-megadepth, edge_maps-hed,
    pose_maps-densepose and pose_maps-openpose (as images).
    """
    recipe = wc_vid2vid_cityscapes()
    assert isinstance(recipe.model, WCVid2VidConfig) and isinstance(recipe.data, ClipDataConfig)
    levels = ("depth_maps-megadepth", "edge_maps-hed")
    return replace(
        recipe,
        model=replace(recipe.model, generator=WCVid2VidGeneratorConfig(max_num_filters=512), positive_inputs=levels),
        data=replace(
            recipe.data,
            maps=("seg_maps-densepose",),
            num_classes=(25,),
            conditions=(*levels, "pose_maps-densepose", "pose_maps-openpose"),
            flip=False,
            length=replace(recipe.data.length, most=64, double_every=20 * _MANNEQUIN),
        ),
        train=replace(recipe.train, total_images=100 * _MANNEQUIN, checkpoint_every=2 * _MANNEQUIN, validate_every=2 * _MANNEQUIN),
        optim=replace(recipe.optim, decay_every=40 * _MANNEQUIN),
    )


def wc_vid2vid_pans64() -> RunConfig:
    """World-consistent vid2vid on pans over still pictures with maps of 12 classes, 64x64, without a perceptual network: for two CPU cores.

    data.path holds train/ and val/, or neither, with images/ (pictures; those of fewer than 96 pixels a side are enlarged) and labels/
    (maps of the classes 0 to 11). A window moves over each; which points it sees, and the flow, are known.
    """
    small = vid2vid_maps64()
    return replace(
        small,
        model=WCVid2VidConfig(
            generator=WCVid2VidGeneratorConfig(
                num_filters=8,
                max_num_filters=64,
                num_layers=4,
                num_downsamples=2,
                spade_kernel_size=1,
                combined=2,
                guidance_filters=16,
                embedding=EmbeddingConfig(num_filters=8, num_downsamples=3),
                flow=_SMALL_FLOW,
                frames=2,
            ),
            discriminator=VideoDiscriminatorConfig(patch=_SMALL, temporal=_SMALL, temporal_scales=1),
            perceptual_weight=0.0,
            l1_weight=10.0,
            initial=InitConfig(gain=1.0),
        ),
        data=PanDataConfig(maps=("labels",), num_classes=(12,), image_size=64, length=_GROWING, enlarge=True),
    )
