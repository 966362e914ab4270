from __future__ import annotations

from typing import Any

import pytest

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.interop.flags import checked_flags, command_line, numbers, parse_flags
from triptych.interop.guided_diffusion.flags import all_flags, flag_table
from triptych.interop.programs import LatentScale
from triptych.interop.transformers import scale_of

KNOWN = all_flags()


def test_tables() -> None:
    diffusion, classifier, upsampler = (flag_table(kind) for kind in ("diffusion", "classifier", "super-resolution"))
    assert (len(diffusion), len(classifier), len(upsampler)) == (23, 16, 22)
    assert diffusion["num_head_channels"].default == -1 and diffusion["use_scale_shift_norm"].default is True
    assert classifier["classifier_attention_resolutions"].default == "32,16,8" and classifier["classifier_resblock_updown"].default is True
    assert (upsampler["large_size"].default, upsampler["small_size"].default) == (256, 64)
    assert not {"image_size", "channel_mult", "use_new_attention_order"} & set(upsampler)
    assert {flag.group for flag in KNOWN.values()} == {"diffusion", "model", "classifier", "super-resolution"}


def test_tables_of_the_ancestor() -> None:
    improved = flag_table("diffusion", "improved-diffusion")
    assert improved["rescale_timesteps"].default is True and improved["rescale_learned_sigmas"].default is True
    assert improved["sigma_small"].default is False
    assert not {"channel_mult", "resblock_updown", "num_head_channels", "use_new_attention_order", "use_fp16"} & set(improved)
    assert "large_size" in flag_table("super-resolution", "improved-diffusion")
    with pytest.raises(ConfigError, match="program: improved-diffusion has no classifiers"):
        flag_table("classifier", "improved-diffusion")
    with pytest.raises(ConfigError, match="program: got 'guided_diffusion', expected .*; did you mean \"guided-diffusion\""):
        flag_table("diffusion", "guided_diffusion")  # type: ignore[arg-type]


def test_the_originals_words() -> None:
    words = "--image_size 64 --class_cond True --learn_sigma yes --use_kl 0 --dropout 0.1 --channel_mult 0.5,1,2 --num_heads_upsample -1"
    assert parse_flags(words, KNOWN) == {
        "image_size": 64,
        "class_cond": True,
        "learn_sigma": True,
        "use_kl": False,
        "dropout": 0.1,
        "channel_mult": "0.5,1,2",
        "num_heads_upsample": -1,
    }
    assert parse_flags(["--noise_schedule=cosine", "--image_size", "64", "--image_size", "32"], KNOWN) == {
        "noise_schedule": "cosine",
        "image_size": 32,
    }
    assert parse_flags("", KNOWN) == {}


@pytest.mark.parametrize("text", ["yes", "true", "t", "y", "1", "TRUE", "Yes"])
def test_yes(text: str) -> None:
    assert parse_flags(["--class_cond", text], KNOWN) == {"class_cond": True}


@pytest.mark.parametrize("text", ["no", "false", "f", "n", "0", "False"])
def test_no(text: str) -> None:
    assert parse_flags(["--class_cond", text], KNOWN) == {"class_cond": False}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--num_chanels 3", '--num_chanels: unknown flag; did you mean "--num_channels"?'),
        ("--num_channels", "--num_channels: the value is missing"),
        ("--num_channels many", "--num_channels: got 'many', expected a whole number"),
        ("--num_channels 1.5", "--num_channels: got '1.5', expected a whole number"),
        ("--dropout x", "--dropout: got 'x', expected a number"),
        ("--class_cond maybe", "--class_cond: got 'maybe', expected one of yes, true, t, y, 1 or of no, false, f, n, 0"),
        ("--channel_mult 1,a", "--channel_mult: got '1,a', expected positive numbers, separated by commas"),
        ("--attention_resolutions 16,0", "--attention_resolutions: got '16,0', expected positive whole numbers, separated by commas"),
        ("--attention_resolutions 1.5", "--attention_resolutions: got '1.5', expected positive whole numbers, separated by commas"),
        ("image_size 64", "flags: unexpected 'image_size'; flags are given as --name value"),
        ("--image_size '64", 'flags: cannot read "--image_size \'64": No closing quotation'),
    ],
)
def test_mistakes(words: str, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_flags(words, KNOWN)
    assert str(raised.value) == line


def test_python_values() -> None:
    given: dict[str, Any] = {
        "channel_mult": (1, 2),
        "attention_resolutions": 16,
        "dropout": 0,
        "class_cond": False,
        "timestep_respacing": 250,
    }
    assert checked_flags(given, KNOWN) == {
        "channel_mult": "1,2",
        "attention_resolutions": "16",
        "dropout": 0.0,
        "class_cond": False,
        "timestep_respacing": "250",
    }
    for name, value, line in (
        ("class_cond", 1, "--class_cond: got 1, expected one of yes"),
        ("num_channels", "64", "--num_channels: got '64', expected a whole number"),
        ("num_channels", True, "--num_channels: got True, expected a whole number"),
        ("noise_schedule", None, "--noise_schedule: got None, expected text"),
        ("imagesize", 64, '--imagesize: unknown flag; did you mean "--image_size"'),
    ):
        with pytest.raises(ConfigError, match=line):
            checked_flags({name: value}, KNOWN)


def test_numbers() -> None:
    assert numbers("0.5,1,2") == (0.5, 1, 2) and isinstance(numbers("2")[0], int)
    assert numbers("") == ()


def test_back_to_words() -> None:
    words = "--image_size 64 --class_cond True --dropout 0.1 --channel_mult 1,2"
    assert command_line(parse_flags(words, KNOWN) | {"timestep_respacing": ""}) == words


def test_the_beginning_of_a_name_stands_for_it() -> None:
    """As argparse, which the original has, takes it."""
    assert parse_flags("--num_ch 64 --image 32 --num_heads 2", KNOWN) == {"num_channels": 64, "image_size": 32, "num_heads": 2}
    with pytest.raises(ConfigError, match="^--num_head: several flags begin so: --num_heads, --num_heads_upsample, --num_head_channels$"):
        parse_flags("--num_head 2", KNOWN)
    with pytest.raises(ConfigError, match="--num_ch: unknown flag"):
        checked_flags({"num_ch": 64}, KNOWN)


def test_flags_as_shells_hand_them_over() -> None:
    """In one word, where variables are not split, and with the backslashes of several lines."""
    expected = {"image_size": 64, "num_channels": 32, "class_cond": True}
    assert parse_flags(["--image_size 64 --num_channels 32", "--class_cond", "True"], KNOWN) == expected
    assert parse_flags(["--image_size 64", "--num_channels 32", "--class_cond True"], KNOWN) == expected
    assert parse_flags("--image_size 64 \\\n  --num_channels 32\n--class_cond True", KNOWN) == expected
    assert parse_flags("'--image_size 64 --num_channels 32 --class_cond True'", KNOWN) == expected
    for words in (["--noise_schedule", "my own"], ["--noise_schedule=my own"]):
        assert parse_flags(words, KNOWN) == {"noise_schedule": "my own"}, "a value is left as it is"


def test_a_flag_is_no_value() -> None:
    with pytest.raises(ConfigError, match="^--class_cond: the value is missing$"):
        parse_flags("--class_cond --image_size 64", KNOWN)
    assert parse_flags("--num_heads_upsample -1", KNOWN) == {"num_heads_upsample": -1}


def test_latents_without_flags_are_those_of_the_originals_training() -> None:
    """Those of Stable Diffusion's autoencoder times 0.18215; it was shown black as -1."""
    found = scale_of(DataSpec(image_size=32, channels=4, num_classes=1000), {})
    assert found == LatentScale(mean=(0.0,) * 4, std=(1 / 0.18215,) * 4, scaled_to=1.0, darkest=-1.0)
