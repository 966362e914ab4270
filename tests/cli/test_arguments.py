"""Words of a command line that are looked at before tyro sees them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from triptych.cli.arguments import class_names, flag_words, given_flag, next_command, require_images, strengths
from triptych.cli.data_doctor import DoctorOptions
from triptych.cli.data_pack import configure as configure_pack
from triptych.cli.main import main
from triptych.cli.plan import PlanOptions
from triptych.cli.sample import SampleOptions
from triptych.cli.score import ScoreOptions
from triptych.cli.settings import flags_of, parse, tables_of, whole_number
from triptych.cli.synonyms import hint
from triptych.cli.train import Base, configure
from triptych.cli.translate import TranslateOptions
from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError
from triptych.data.config import DataConfig

from .conftest import ToySampling, toy_recipe
from .test_settings import Penalty


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("2.50k", "2500"),
        ("1.234k", "1234"),
        ("1.2340k", "1234"),
        ("1.2345k", "1.2345k"),
        ("1.50", "1.50"),
        ("3.0", "3"),
        ("1.5e+3", "1500"),
        ("2e3k", "2000000"),
        ("1e100", "1e100"),
        ("2m", "2m"),
    ],
)
def test_a_whole_number_has_no_more_digits_than_places(text: str, digits: str) -> None:
    assert whole_number(text) == digits


def test_words_of_a_list_end_where_the_next_flag_begins() -> None:
    assert flag_words("--metrics", ["--metrics", "a", "b,c", "-h", "d"]) == ["a", "b", "c"]
    assert flag_words("--metrics", ["--metrics=a,b", "c", "--metrics", "d"]) == ["d"]


def test_a_setting_is_given_with_lines_and_in_the_negative_too() -> None:
    flags = list(flags_of(SampleOptions()))
    assert [given_flag(flags, [word, "1"]) for word in ("--mix_at", "--mix-at=1", "--no-mix-at", "--mix")] == ["--mix-at"] * 3 + ["--mix"]
    assert given_flag(flags, ["--steps", "count"]) is None


def test_no_images_are_looked_for_where_none_are_named(tmp_path: Path) -> None:
    for nothing in (None, "", "None", "https://nobody.invalid/a.zip"):
        require_images(nothing)
    with pytest.raises(DataError, match="none: does not exist; why$"):
        require_images(str(tmp_path / "none"), note="; why")


@pytest.mark.parametrize("text", ["a=0:inf", "a=nan:1", "a=-inf", "a=1:2:3", "a=", "=1", "a"])
def test_strengths_are_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="direction: got .*, expected NAME=STRENGTH or NAME=FROM:TO"):
        strengths([text])


def test_the_classes_of_a_run_go_before_those_of_its_guide() -> None:
    named, unnamed = (cast(Any, SimpleNamespace(spec=SimpleNamespace(class_names=names))) for names in (("cat", "dog"), None))
    assert class_names(named, guide="runs/of/nobody") == ("cat", "dog") and class_names(unnamed, guide=None) is None


def test_inputs_of_its_own_are_advised_of_a_run_that_has_seen_some() -> None:
    """An imported one has none yet."""
    config = SimpleNamespace(model=SimpleNamespace(verbs=lambda: {"translate"}))
    run = cast(Any, SimpleNamespace(directory=Path("r"), config=config, outline=SimpleNamespace(styles="none")))
    assert next_command(run, trained=False) == "translate with it: triptych translate r INPUT --out DIR"
    assert "--held-out, or " in str(next_command(run, trained=True))


def test_a_part_of_a_synonym_is_none() -> None:
    flags = ["--optim.learning-rate", "--train.batch-size"]
    assert [hint(name, flags) for name in ("--atch", "--earning")] == ["", ""] and "batch-size" in hint("--batch", flags)


def test_the_beginning_of_one_flag_alone_means_it() -> None:
    flags = ["--temperature", "--count", "--checkpoint", "--weights", "--labels", "--eta"]
    assert hint("--temp", flags) == '; did you mean "--temperature"?'
    assert hint("--c", flags) == "" and hint("--we", ["--a.weights"]) == "", "of two, or within a section, it is none"
    assert hint("--ema", flags) == '; did you mean "--weights"?' and "--train.ema-rates" in hint("--ema", [*flags, "--train.ema-rates"])
    assert hint("--prompt", flags) == '; did you mean "--labels"? (no model here knows text: some draw classes, by number or name)'


def test_tables_are_written_as_what_they_are() -> None:
    """A section that may be there once, with single brackets."""
    assert dict(tables_of(Penalty())) == {"--gamma": "[gamma]", "--limit": "[limit]", "--start": "[start]"}


def parsed(*arguments: str, options: Config) -> Config:
    return parse(arguments, prog="a", description="b", options=options, settings=ToySampling())[0]


def test_a_list_that_may_be_none_is_none() -> None:
    options = cast(ScoreOptions, parsed("--metrics", "None", options=ScoreOptions(metrics=("kid",))))
    assert options.metrics is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--no-out x", "--no-out: unknown setting"),
        ("-out x", '-out: unknown setting; did you mean "--out"?'),
        ("-5", "unexpected '-5'"),
    ],
)
def test_what_only_looks_like_a_flag(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(*words.split(), options=SampleOptions())
    assert str(caught.value).startswith(said)


def test_what_all_verbs_share_comes_last_on_a_page_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help", options=SampleOptions())
    page = capsys.readouterr().out
    places = [page.index(f"{flag} ") for flag in ("--count", "--mix-at", "--checkpoint", "--device", "--steps")]
    assert places == sorted(places)


def test_a_file_for_a_recipe_may_go_over_a_run(tmp_path: Path) -> None:
    """Its head names another place, and the run is what was said."""
    file = tmp_path / "a.toml"
    file.write_text('recipe = "adm-digits"\nrun = "runs/other"\n[train]\nseed = 5\n')
    options, config = configure(Base(toy_recipe(), None, tmp_path / "run"), ["--config", str(file)])
    assert (options.run, config.train.seed) == (None, 5)


@pytest.mark.parametrize(
    ("options", "name", "value", "beyond"),
    [
        (PlanOptions, "seconds", 3600.0, 3600.5),
        (PlanOptions, "processes", 10**6, 10**6 + 1),
        (DoctorOptions, "workers", 1024, 1025),
        (TranslateOptions, "fps", 1000.0, 1000.5),
        (TranslateOptions, "fps", 0.001, 0.0005),
        (TranslateOptions, "style", "a", ""),
        (SampleOptions, "guide_ema_length", None, 0.1),
    ],
)
def test_options_at_the_ends_of_their_ranges(options: type[Config], name: str, value: Any, beyond: Any) -> None:
    assert getattr(options(**{name: value}), name) == value
    with pytest.raises(ConfigError, match=f"^{name}: got "):
        options(**{name: beyond})


def test_images_and_recipes_of_none(capsys: pytest.CaptureFixture[str]) -> None:
    """No recipe is the plain settings; without a recipe too, images have to be named."""
    _, data = configure_pack(["photos", "--recipe", "None", "--out", "a.npz"])
    assert data == DataConfig(path="photos")
    for words, said in (([], "no images given; usage: "), (["--out", "a.png"], "got '--out' where the images are expected; usage: ")):
        assert main(["data", "show", *words]) == 2
        assert said in capsys.readouterr().err
