"""YAML files in the format of imaginaire for its models of clips, and for the SPADE of world-consistent vid2vid, with published values."""

from __future__ import annotations

from typing import Any

from tests.interop.imaginaire_files import IMAGE, MASK, PERCEPTUAL, PUBLISHED, adam, changed

_CONVOLUTIONS = {"kernel_size": 3, "weight_norm_type": "spectral"}
_IMAGE_DIS = {"num_filters": 64, "max_num_filters": 512, "num_discriminators": 2, "num_layers": 3, "weight_norm_type": "none"}


def _size(batch_size: int, first: int = 4, most: int | None = 16, **augmentations: Any) -> dict[str, Any]:
    lengths = {"initial_sequence_length": first} | ({} if most is None else {"max_sequence_length": most})
    return {"roots": ["dataset/train"], "is_lmdb": True, "batch_size": batch_size, **lengths, "augmentations": augmentations}


_STREET: dict[str, Any] = {
    "single_frame_epoch": 0,
    "num_epochs_temporal_step": 20,
    "flow_network": {"type": "imaginaire.third_party.flow_net.flow_net", "pretrained_path": ""},
    "snapshot_save_epoch": 5,
    "image_save_iter": 500,
    "logging_iter": 100,
    "max_epoch": 80,
    "trainer": {
        "type": "imaginaire.trainers.vid2vid",
        "amp_config": {"enabled": True},
        "distributed_data_parallel_params": {"find_unused_parameters": False},
        "model_average_config": {"enabled": True, "beta": 0.999, "start_iteration": 500, "num_batch_norm_estimation_iterations": 0},
        "num_videos_to_test": 64,
        "num_frames_per_video": 10,
        "gan_mode": "hinge",
        "gan_relativistic": False,
        "loss_weight": {"gan": 1.0, "feature_matching": 10.0, "temporal_gan": 0.0, "perceptual": 10.0, "flow": 10.0},
        "perceptual_loss": PERCEPTUAL | {"num_scales": 3},
        "init": {"type": "xavier", "gain": 0.02},
    },
    "gen_opt": adam(2e-4, beta1=0.5, type="step", step_size=60, gamma=0.1),
    "dis_opt": adam(2e-4, beta1=0.5, type="step", step_size=60, gamma=0.1),
    "gen": {
        "type": "imaginaire.generators.vid2vid",
        **_CONVOLUTIONS,
        "num_filters": 32,
        "max_num_filters": 1024,
        "num_downsamples": 5,
        "num_downsamples_img": 4,
        "num_layers": 7,
        "use_segmap_as_input": True,
        "activation_norm_type": "spatially_adaptive",
        "activation_norm_params": {"activation_norm_type": "instance", "num_filters": 0, "kernel_size": 1},
        "do_checkpoint": False,
        "embed": {"use_embed": "True", "arch": "encoderdecoder", "num_filters": 32, "num_downsamples": 5, **_CONVOLUTIONS},
        "flow": {
            "generate_raw_output": False,
            "flow_output_multiplier": 40,
            "num_filters": 32,
            "max_num_filters": 1024,
            "num_downsamples": 5,
            "num_res_blocks": 6,
            "activation_norm_type": "instance",
            **_CONVOLUTIONS,
            "multi_spade_combine": {"num_layers": 3, "embed": {"arch": "unet", "num_filters": 32, "num_downsamples": 5, **_CONVOLUTIONS}},
        },
    },
    "dis": {
        "type": "imaginaire.discriminators.fs_vid2vid",
        "image": {**_IMAGE_DIS, "activation_norm_type": "instance"},
        "temporal": {"num_scales": 0},
    },
    "data": {
        "name": "cityscapes",
        "type": "imaginaire.datasets.paired_videos",
        "num_frames_G": 3,
        "num_frames_D": 3,
        "num_workers": 4,
        "input_types": [{"images": IMAGE}, {"seg_maps": MASK | {"interpolator": "NEAREST"}}],
        "full_data_ops": "imaginaire.model_utils.label::make_one_hot, imaginaire.model_utils.label::concat_labels",
        "use_dont_care": False,
        "one_hot_num_classes": {"seg_maps": 35},
        "input_image": ["images"],
        "input_labels": ["seg_maps"],
        "train": _size(2, resize_smallest_side=512, random_scale_limit=0.2, horizontal_flip=True, random_crop_h_w="512, 1024"),
        "val": {"roots": ["dataset/val"], "batch_size": 1, "augmentations": {"resize_h_w": "512, 1024"}},
    },
    "inference_args": {"save_fake_only": False},
}
_LEVELS = {"ext": "png", "interpolator": "BILINEAR"}
_DRAWN = {"num_channels": 27, "ext": "json", "interpolator": None, "normalize": False}
_DRAWN |= {"pre_aug_ops": "decode_json, imaginaire.utils.visualization.pose::openpose_to_npy"}
_EXTRA_DIS = {**_IMAGE_DIS, "num_filters": 32, "num_discriminators": 1, "weight_norm_type": "spectral", "loss_weight": 10.0}
_DANCING = changed(
    _STREET,
    {
        "max_epoch": 5,
        "snapshot_save_epoch": 1,
        "image_save_iter": 1000,
        "logging_iter": 1000,
        "num_epochs_temporal_step": 1,
        "trainer": {"perceptual_loss": {"num_scales": 1}},
        "gen_opt": adam(1e-4, type="step", step_size=100, gamma=0.5),
        "dis_opt": adam(4e-4, type="step", step_size=100, gamma=0.5),
        "gen": {
            "use_segmap_as_input": None,
            "num_layers": None,
            "num_downsamples_img": None,
            "style_dims": 256,
            "flow": {"num_downsamples": 3, "flow_output_multiplier": 20},
        },
        "dis": {
            "image": {"num_filters": 32, "num_layers": 4, "weight_norm_type": "spectral"},
            "additional_discriminators": {"face": {**_EXTRA_DIS, "vis": True}, "hand": _EXTRA_DIS},
        },
        "data": {
            "input_types": [{"images": IMAGE}, {"poses-openpose": _DRAWN}],
            "one_hot_num_classes": None,
            "input_labels": ["poses-openpose"],
            "keypoint_data_types": ["poses-openpose"],
            "for_pose_dataset": {"pose_type": "open", "remove_face_labels": False, "basic_points_only": False, "random_drop_prob": 0.05},
        },
    },
)
_DANCING["data"]["train"] = _size(2, resize_smallest_side=512, random_scale_limit=0.2, random_crop_h_w="512, 512")
_TABLES = {"unprojections": {"ext": "pkl", "num_channels": 3, "interpolator": None, "post_aug_ops": "decode_unprojections"}}
_WORLD = changed(
    _STREET,
    {
        "snapshot_save_epoch": 2,
        "max_epoch": 100,
        "trainer": {
            "type": "imaginaire.trainers.wc_vid2vid",
            "model_average_config": {"enabled": False},
            "loss_weight": {"guidance": 20.0},
            "perceptual_loss": {"num_scales": 1},
        },
        "gen_opt": adam(1e-4, type="step", step_size=40, gamma=0.1),
        "dis_opt": adam(4e-4, type="step", step_size=40, gamma=0.1),
        "gen": {
            "type": "imaginaire.generators.wc_vid2vid",
            "activation_norm_params": {"num_filters": [0, 0, 128], "kernel_size": 3},
            "guidance": {"partial_conv": False, "only_with_flow": True},
            "single_image_model": {"config": "configs/seg_map_to_image.yaml"},
        },
        "data": {
            "input_types": [{"images": IMAGE}, {"seg_maps": MASK}, _TABLES],
        },
    },
)
_WORLD["data"]["train"] = _size(1, most=None, resize_h_w="512, 1024", horizontal_flip=True)
_LANDMARKS = {"num_channels": 1, "ext": "json", "interpolator": None, "normalize": False, "pre_aug_ops": "decode_json"}
_FACES = changed(
    _STREET,
    {
        "snapshot_save_epoch": 25,
        "image_save_iter": 1000,
        "max_epoch": 200,
        "num_epochs_temporal_step": 50,
        "trainer": {"type": "imaginaire.trainers.fs_vid2vid"},
        "gen_opt": adam(1e-4, type="step", step_size=100, gamma=0.1),
        "dis_opt": adam(4e-4, type="step", step_size=100, gamma=0.1),
        "gen": {
            "type": "imaginaire.generators.fs_vid2vid",
            "use_segmap_as_input": None,
            "num_layers": None,
            "num_downsamples_img": None,
            "hyper": {
                "is_hyper_spade": True,
                "is_hyper_embed": True,
                "is_hyper_conv": False,
                "num_hyper_layers": 4,
                "num_fc_layers": 2,
                "method_to_use_ref_labels": "mul",
                "activation_norm_type": "instance",
                "attention": {"num_filters": 32, "num_downsamples": 2},
                **_CONVOLUTIONS,
            },
            "flow": {
                "warp_ref": True,
                "sep_prev_flow": False,
                "sep_warp_embed": True,
                "num_downsamples": 3,
                "flow_output_multiplier": 20,
                "multi_spade_combine": {"num_layers": 2},
            },
        },
        "dis": {"image": {"num_filters": 32, "num_layers": 4, "weight_norm_type": "spectral"}},
        "data": {
            "type": "imaginaire.datasets.paired_few_shot_videos",
            "num_frames_G": 2,
            "num_frames_D": 2,
            "initial_few_shot_K": 1,
            "output_h_w": "512, 512",
            "input_types": [{"images": IMAGE}, {"landmarks-dlib68": _LANDMARKS}],
            "one_hot_num_classes": None,
            "input_labels": ["landmarks-dlib68"],
            "input_few_shot_labels": ["landmarks-dlib68"],
            "keypoint_data_types": ["landmarks-dlib68"],
            "for_face_dataset": {"add_upper_face": True},
        },
        "inference_args": {"few_shot_seq_index": 0, "few_shot_frame_index": 0, "driving_seq_index": 1},
    },
)
_FACES["data"]["train"] = _size(3, resize_smallest_side=1024)
_POSES = {"num_channels": 3, "ext": "json", "interpolator": None, "normalize": False}
_FEW_SHOT_DANCING = changed(
    _FACES,
    {
        "max_epoch": 20,
        "snapshot_save_epoch": 5,
        "image_save_iter": 100,
        "num_epochs_temporal_step": 5,
        "trainer": {"model_average_config": {"enabled": False}},
        "gen_opt": adam(1e-4, type="step", step_size=10, gamma=0.1),
        "dis_opt": adam(4e-4, type="step", step_size=10, gamma=0.1),
        "dis": {"additional_discriminators": {"face": _EXTRA_DIS}},
        "data": {
            "output_h_w": "512, 256",
            "input_types": [{"images": IMAGE}, {"pose_maps-densepose": {**_LEVELS, "num_channels": 3}}, {"poses-openpose": _POSES}],
            "input_labels": ["pose_maps-densepose", "poses-openpose"],
            "input_few_shot_labels": ["pose_maps-densepose", "poses-openpose"],
            "for_face_dataset": None,
            "for_pose_dataset": {"pose_type": "both", "remove_face_labels": True, "random_drop_prob": 0.05},
        },
        "inference_args": {"finetune": True, "finetune_iter": 100},
    },
)
_FEW_SHOT_DANCING["data"]["train"] = _size(6, resize_smallest_side=540)
_MIXED: dict[str, Any] = {
    "input_types": [
        {"images": IMAGE},
        {"seg_maps-densepose": MASK},
        {"depth_maps-megadepth": {**_LEVELS, "num_channels": 3, "normalize": False}},
        {"edge_maps-hed": {**_LEVELS, "num_channels": 1, "normalize": False}},
        {"pose_maps-densepose": {**_LEVELS, "num_channels": 3, "normalize": True}},
        {"pose_maps-openpose": {**_LEVELS, "num_channels": 3, "normalize": True}},
    ],
    "one_hot_num_classes": {"seg_maps-densepose": 25},
    "input_labels": ["seg_maps-densepose", "depth_maps-megadepth", "edge_maps-hed", "pose_maps-densepose", "pose_maps-openpose"],
}
_MANNEQUIN = changed(
    _WORLD,
    {
        "trainer": {"amp_config": {"enabled": False}},
        "gen": {"max_num_filters": 512, "flow": {"max_num_filters": 512}},
        "data": _MIXED | {"input_types": [*_MIXED["input_types"], _TABLES]},
    },
)
_MANNEQUIN["data"]["train"] = _size(1, most=None, resize_h_w="512, 1024")
_MANNEQUIN["data"]["one_hot_num_classes"] = _MIXED["one_hot_num_classes"]
_SINGLE = changed(
    PUBLISHED["spade"],
    {
        "trainer": {"model_average_config": {"enabled": False}, "amp_config": {"enabled": True}},
        "gen": {
            "use_posenc_in_input_layer": True,
            "activation_norm_params": {"separate_projection": False, "weight_norm_type": "none"},
        },
        "dis": {"kernel_size": 3},
        "gen_opt": adam(1e-4, type="step", step_size=100, gamma=0.01),
        "dis_opt": adam(4e-4, type="step", step_size=100, gamma=0.01),
        "data": {
            "type": "imaginaire.datasets.paired_videos",
            "input_types": [{"images": IMAGE}, {"seg_maps": MASK}],
            "one_hot_num_classes": None,
            "use_dont_care": False,
            "input_labels": ["seg_maps"],
            "train": {"augmentations": {"resize_smallest_side": 512, "random_crop_h_w": "512, 512"}},
        },
    },
)
_SINGLE["data"]["one_hot_num_classes"] = {"seg_maps": 35}
VIDEOS: dict[str, dict[str, Any]] = {
    "street": _STREET,
    "dancing": _DANCING,
    "faces": _FACES,
    "few-shot dancing": _FEW_SHOT_DANCING,
    "world": _WORLD,
    "mannequin": _MANNEQUIN,
}
"""vid2vid on Cityscapes and on dances, few-shot vid2vid on faces and dances, world-consistent vid2vid on Cityscapes and mannequins."""
SINGLE: dict[str, dict[str, Any]] = {"street": _SINGLE, "mannequin": changed(_SINGLE, {"data": {**_MIXED}})}
"""The SPADEs of the first frames of the latter two."""
SINGLE["mannequin"]["data"]["one_hot_num_classes"] = _MIXED["one_hot_num_classes"]
