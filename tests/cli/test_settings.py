"""Flags: every type of setting, every kind of mistake, and the help."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import tyro

from triptych import cli
from triptych.cli.data import configure as configure_stats
from triptych.cli.data import configure_encode
from triptych.cli.data_doctor import DoctorOptions
from triptych.cli.main import main
from triptych.cli.sample import SampleOptions
from triptych.cli.score import ScoreOptions
from triptych.cli.settings import field_docs, flags_of, parse, read_config_file
from triptych.cli.synonyms import _SYNONYMS
from triptych.cli.train import TrainOptions
from triptych.cli.translate import TranslateOptions
from triptych.core.config import Config, config, field_types
from triptych.core.errors import ConfigError
from triptych.core.ramp import Ramp
from triptych.diffusion.model import SamplingConfig
from triptych.engine.config import AverageConfig, PhaseOptimConfig, TrainConfig
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.evaluation.clip_metric import ClipMetricConfig
from triptych.evaluation.feature_set import SetMetricConfig
from triptych.evaluation.pair_metric import PairMetricConfig
from triptych.recipes.catalogue import load_recipe, recipes

from .conftest import ToyNetwork, toy_recipe


def parsed(*arguments: str) -> tuple[TrainOptions, Any]:
    return parse(arguments, prog="triptych train toy", description="A toy.", options=TrainOptions(), settings=toy_recipe())


def value_of(settings: Config, dotted: str) -> Any:
    value: Any = settings
    for name in dotted.split("."):
        value = getattr(value, name)
    return value


def test_the_parser_is_shown_the_given_flags_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All settings of a recipe would take it a tenth of a second."""
    forms: list[Any] = []
    monkeypatch.setattr(tyro, "cli", lambda form, **_: forms.append(form) or form())
    parsed("--train.seed", "0", "--run=here")
    (form,) = forms
    assert set(vars(form())) == {"run", "train"} and set(vars(form().train)) == {"seed"}


def test_without_flags_the_recipe_stays_as_it_is() -> None:
    assert parsed() == (TrainOptions(), toy_recipe())


@pytest.mark.parametrize(
    ("arguments", "setting", "value"),
    [
        ("--train.total-images 5000", "train.total_images", 5000),
        ("--train.total_images 5000", "train.total_images", 5000),
        ("--train.batch-size=7", "train.batch_size", 7),
        ("--train.microbatch 4", "train.microbatch", 4),
        ("--train.checkpoint-every None", "train.checkpoint_every", None),
        ("--train.precision bf16", "train.precision", "bf16"),
        ("--train.ema-rates 0.99 0.999", "train.ema_rates", (0.99, 0.999)),
        ("--train.ema-rates None", "train.ema_rates", ()),
        ("--train.ema-rates=None", "train.ema_rates", ()),
        ("--train.ema-rates 0.99,0.999", "train.ema_rates", (0.99, 0.999)),
        ("--train.ema-rates=0.99,0.999 --train.seed 3", "train.ema_rates", (0.99, 0.999)),
        ("--train.total-images 1e6", "train.total_images", 1_000_000),
        ("--train.total-images=10M", "train.total_images", 10_000_000),
        ("--train.total-images 2.5k", "train.total_images", 2_500),
        ("--train.total_images 1_000", "train.total_images", 1_000),
        ("--train.microbatch 2k", "train.microbatch", 2_000),
        ("--train.microbatch auto", "train.microbatch", "auto"),
        ("--train.microbatch None", "train.microbatch", None),
        ("--train.ema-rates 0.5 --train.seed 3", "train.ema_rates", (0.5,)),
        ("--train.randomized-seed", "train.randomized_seed", True),
        ("--train.randomized-seed True", "train.randomized_seed", True),
        ("--train.no-ema-warmup", "train.ema_warmup", False),
        ("--train.ema-warmup false", "train.ema_warmup", False),
        ("--train.ema_warmup=False", "train.ema_warmup", False),
        ("--optim.betas 0.5 0.75", "optim.betas", (0.5, 0.75)),
        ("--optim.betas 0.5,0.75", "optim.betas", (0.5, 0.75)),
        ("--optim.learning-rate 3e-4", "optim.learning_rate", 3e-4),
        ("--data.path ./photos", "data.path", "./photos"),
        ("--data.channels 3", "data.channels", 3),
        ("--model.network.num-channels 32", "model.network.num_channels", 32),
        ("--model.network.multipliers 1,1,2k", "model.network.multipliers", (1, 1, 2_000)),
        ("--model.network.multipliers 1 1 2", "model.network.multipliers", (1, 1, 2)),
        ("--model.network.heads 2", "model.network.heads", 2),
        ("--model.network.use-skip False", "model.network.use_skip", False),
        ("--model.objective velocity", "model.objective", "velocity"),
        ("--model.sampling.steps 50", "model.sampling.steps", 50),
    ],
)
def test_a_flag_sets_its_setting_and_no_other(arguments: str, setting: str, value: Any) -> None:
    _, settings = parsed(*arguments.split())
    assert value_of(settings, setting) == value
    changes = [flag.setting for flag in flags_of(settings) if flag.default != value_of(toy_recipe(), flag.setting)]
    assert set(changes) <= {setting, "train.seed"}


@pytest.mark.parametrize(
    ("words", "flip"),
    [
        ((), None),
        (("--flip",), True),
        (("--flip", "True"), True),
        (("--flip", "true"), True),
        (("--flip=False",), False),
        (("--flip=false",), False),
        (("--no-flip",), False),
        (("--flip", "None"), None),
    ],
)
def test_a_flag_that_may_be_none_can_stand_alone(words: tuple[str, ...], flip: bool | None) -> None:
    _, options = configure_encode(["photos", *words, "--with", "runs/kl", "--out", "x.npz"])
    assert (options.flip, options.autoencoder, options.out) == (flip, "runs/kl", "x.npz")


def test_a_value_may_have_the_name_of_a_flag() -> None:
    _, options = configure_encode(["photos", "--with", "no-flip", "--out", "flip.npz"])
    assert (options.flip, options.autoencoder, options.out) == (None, "no-flip", "flip.npz")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--flip=",), "--flip: got '', expected"),
        (("--no-flip", "true"), "--no-flip: got 'true', expected"),
        (("--flip", "x"), "--flip: got 'x'"),
    ],
)
def test_a_wrong_value_of_a_flag_that_may_be_none(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configure_encode(["photos", "--with", "a", "--out", "x.npz", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("stats --image-size 0", "--image-size: got 0, expected at least 1"),
        ("stats --image-size 4 --width 0", "--width: got 0, expected at least 1"),
        ("stats --width 4", "--width: got 4, expected nothing without --image-size"),
        ("stats --out a.npy", "--out: got 'a.npy', expected a name that ends with .npz"),
        ("encode --image-size 0", "--image-size: got 0, expected at least 1"),
        ("encode --validation-fraction 1", "--validation-fraction: got 1.0, expected 0 or more and below 1"),
        ("encode --out a.npy", "--out: got 'a.npy', expected a name that ends with .npz"),
    ],
)
def test_options_of_data_out_of_range(words: str, said: str) -> None:
    verb, *flags = words.split()
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        configure_stats(flags) if verb == "stats" else configure_encode(["photos", *flags])


@pytest.mark.parametrize("arguments", [("--run", ""), ("--run=",), ("--device", "")])
def test_an_empty_text_is_a_slip(arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=rf"{arguments[0].rstrip('=')}: got '', expected text; leave .* out for none"):
        parsed(*arguments)


def test_options_are_told_from_settings() -> None:
    options, settings = parsed("--run", "runs/a", "--train.seed", "1", "--init-from", "runs/b", "--device", "cpu")
    assert options == TrainOptions(run="runs/a", init_from="runs/b", device="cpu")
    assert settings.train.seed == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--train.totl-images 3", '--train.totl-images: unknown setting; did you mean "--train.total-images"?'),
        ("--batch-size 4", '--batch-size: unknown setting; did you mean "--train.batch-size"?'),
        ("--rnu x", '--rnu: unknown setting; did you mean "--run"?'),
        ("--count 5", "--count: unknown setting"),
        ("--run a b", "--run: got 2 texts (a b), expected one; with spaces it needs quotation marks"),
        ("--train.total-images many", "--train.total-images: got 'many', expected a whole number"),
        ("--train.seed 0 --train.total-images 1.5", "--train.total-images: got '1.5', expected a whole number"),
        ("--train.total-images 1.0005k", "--train.total-images: got '1.0005k', expected a whole number"),
        ("--train.microbatch half", "--train.microbatch: got 'half', expected a whole number or auto"),
        ("--train.ema-rates", "--train.ema-rates: the value is missing, expected one value or several (A,B or A B), each a number"),
        (
            "--train.ema-rates --train.seed 3",
            "--train.ema-rates: the value is missing, expected one value or several (A,B or A B), each a number",
        ),
        ("--train.ema-rates 0.5,,0.6", "--train.ema-rates: got '0.5,,0.6', expected one value or several (A,B or A B), each a number"),
        ("--optim.betas 0.9", "--optim.betas: got '0.9', expected 2 values, each a number"),
        (
            "--train.precision bf61",
            "--train.precision: got 'bf61', expected one of auto, float32, bf16, fp16; did you mean \"bf16\"?",
        ),
        ("--train.total-images", "--train.total-images: the value is missing, expected a whole number"),
        ("--train.batch-size 3 4", "--train.batch-size: got '3 4', expected a whole number"),
        ("--train.ema-warmup maybe", "--train.ema-warmup: got 'maybe', expected nothing, True or False"),
        ("--train.ema-warmup --train.batch-size x", "--train.batch-size: got 'x', expected a whole number"),
        ("--train.no-ema-warmup --train.batch-size x", "--train.batch-size: got 'x', expected a whole number"),
        ("folder", "unexpected 'folder'; settings are given as --name value"),
        ("--train.batch-size 0", "--train.batch-size: got 0, expected at least 1"),
        ("--model.network.num-channels -3", "--model.network.num-channels: got -3, expected at least 1"),
        ("--train.ema-rates 0.5 1.5", "--train.ema-rates: got 0.5, 1.5, expected rates from 0 to below 1"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_flag(arguments: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(*arguments.split())
    assert str(caught.value) == message
    assert capfd.readouterr() == ("", ""), "tyro's own message must not come through"


@pytest.mark.parametrize("flag", ["--train.averages", "--train.averages.rate", "--train.averages[1].half_life"])
def test_a_table_of_a_file_of_settings_is_no_flag(flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(flag, "5")
    assert str(caught.value) == (
        f"{flag}: no flag, but a table in a file of settings: write [[train.averages]] and below it NAME = VALUE, and give the file by "
        "--config"
    )
    with pytest.raises(ConfigError) as caught:
        parsed("--optim.phases", "5")
    assert "write [[optim.phases]] and" in str(caught.value)
    with pytest.raises(ConfigError, match="--train.average: unknown setting; did you mean"):
        parsed("--train.average", "5")


LENGTH = "the length of a run is counted in images seen"


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--lr", '"--optim.learning-rate"?'),
        ("--optim.lr", '"--optim.learning-rate"?'),
        ("--batch", '"--train.batch-size"?'),
        ("--epochs", f'"--train.total-images"? ({LENGTH}: epochs times the number of training images)'),
        ("--train.epochs", f'"--train.total-images"? ({LENGTH}: epochs times the number of training images)'),
        ("--steps", f'"--train.total-images"? ({LENGTH}: steps times --train.batch-size)'),
        (
            "--resume",
            '"--init-from"? (the same command with the same --run goes on from its newest checkpoint; '
            "the weights of another run begin a new one)",
        ),
        (
            "--gpus",
            '"--device"? (a GPU is used without asking; for several: torchrun --standalone --nproc-per-node 4 -m -- triptych ...)',
        ),
        ("--outdir", '"--run"?'),
        ("--seed", '"--train.seed"?'),
        ("--use-skip", '"--model.network.use-skip"?'),
    ],
)
def test_what_other_programs_call_a_setting(flag: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(flag, "5")
    assert str(caught.value) == f"{flag}: unknown setting; did you mean {meant}"


def test_every_synonym_is_of_a_setting_that_there_is() -> None:
    known = {
        flag.name for part in (TrainOptions(), SampleOptions(), toy_recipe(), load_recipe("adm-digits").model) for flag in flags_of(part)
    }
    known |= {flag.name for flag in flags_of(SamplingConfig())}
    for _, targets, _ in _SYNONYMS:
        assert known.issuperset(targets.split()), targets


def test_help_shows_every_flag_with_the_docstring_of_its_field(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed("--help")
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "usage: triptych train toy" in shown
    for flag in flags_of(toy_recipe()):
        assert flag.name in shown, flag.name
    assert "Heads of attention; None: one for every 64 channels." in shown
    assert field_docs(TrainConfig)["batch_size"] in shown
    assert "pip install triptych[logs]" in shown
    assert toy_recipe().train.ema_lengths == () and "do not concern them. (default: None)" in shown and "(default: )" not in shown


def test_what_is_required_is_shown_without_a_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "stats", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mu_s and sigma_s too. (no default)" in shown and "that in the cache. (default: None)" in shown


def test_the_lines_of_a_recipes_description_are_lines_of_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "vid2vid-maps64", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "data.path holds train/" in shown and "\\n" not in shown


def test_every_field_of_the_engine_has_a_docstring() -> None:
    assert field_docs(ToyNetwork) == {
        "num_channels": "Width of the network.",
        "multipliers": "Width of each level.",
        "heads": "Heads of attention; None: one for every 64 channels.",
        "use_skip": "Whether there are skip connections.",
    }
    recipe = toy_recipe()
    for section in (recipe, recipe.train, recipe.optim, recipe.log, recipe.data):
        assert set(field_docs(type(section))) == {field.name for field in dataclasses.fields(section)}, type(section).__name__


def test_settings_files(tmp_path: Path) -> None:
    toml = tmp_path / "a.toml"
    toml.write_text('[train]\nbatch_size = 32\ncheckpoint-every = "None"\n[model.network]\nmultipliers = [1, 2, 4]\n')
    json = tmp_path / "a.json"
    json.write_text('{"train": {"batch_size": 32, "checkpoint-every": null}, "model": {"network": {"multipliers": [1, 2, 4]}}}')
    for file in (toml, json):
        settings = toy_recipe().updated(read_config_file(file))
        assert (settings.train.batch_size, settings.train.checkpoint_every) == (32, None)
        assert value_of(settings, "model.network.multipliers") == (1, 2, 4)


def test_settings_files_have_large_numbers_and_empty_lists(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[train]\ntotal_images = 1e6\nema_rates = "None"\n')
    (tmp_path / "a.json").write_text('{"train": {"total_images": 1e6, "ema_rates": []}}')
    for name in ("a.toml", "a.json"):
        settings = toy_recipe().updated(read_config_file(tmp_path / name))
        assert (settings.train.total_images, settings.train.ema_rates) == (1_000_000, ())
        assert type(settings.train.total_images) is int
    with pytest.raises(ConfigError, match="train.total_images: got 1.5, expected a whole number"):
        toy_recipe().updated({"train": {"total_images": 1.5}})


def test_lists_of_sections_are_for_files_alone(tmp_path: Path) -> None:
    first = '[[train.averages]]\nhalf_life = 5e5\nramp_up = "None"\n'
    (tmp_path / "a.toml").write_text(f"{first}[[train.averages]]\nhalf_life = {{start=0, end=8, images=20}}\n")
    settings = toy_recipe().updated(read_config_file(tmp_path / "a.toml"))
    assert settings.train.averages == (AverageConfig(half_life=500_000), AverageConfig(half_life=Ramp(start=0, end=8, images=20)))
    assert "train.averages" not in {flag.setting for flag in flags_of(settings)}
    assert parse(["--train.seed", "3"], prog="a", description="b", options=TrainOptions(), settings=settings)[1].train.averages
    with pytest.raises(ConfigError, match=r"train.averages\[0\].half_lives: unknown setting of AverageConfig"):
        toy_recipe().updated({"train": {"averages": [{"half_lives": 3}]}})


@config
class Penalty(Config):
    """A setting that may be a number or a ramp."""

    gamma: float | Ramp = 1.0
    "The factor."
    limit: int | Ramp | None = None
    "The limit."
    start: Ramp | None = None
    "A section or nothing."


def test_a_number_that_may_be_a_ramp_has_a_flag() -> None:
    """A ramp of the recipe has one for each of its settings in place of it."""

    def penalty(settings: Penalty, *arguments: str) -> Penalty:
        return parse(arguments, prog="a", description="b", options=TrainOptions(), settings=settings)[1]

    assert {flag.name for flag in flags_of(Penalty())} == {"--gamma", "--limit"}
    assert penalty(Penalty(), "--gamma", "2", "--limit", "3k") == Penalty(gamma=2.0, limit=3_000)
    ramp = Penalty(gamma=Ramp(start=1, end=0, images=8))
    assert penalty(ramp, "--gamma.images", "9") == Penalty(gamma=Ramp(start=1, end=0, images=9))
    with pytest.raises(ConfigError, match="--gamma: got 'much', expected a number"):
        penalty(Penalty(), "--gamma", "much")


@pytest.mark.parametrize("recipe", recipes())
def test_settings_of_every_model_have_names_of_their_own(recipe: str) -> None:
    """Beside the options of the verbs that take them."""
    model = load_recipe(recipe).model
    for name, options in (("sampling", SampleOptions()), ("sampling", ScoreOptions()), ("translation", TranslateOptions())):
        if hasattr(model, name):
            settings = getattr(model, name)
            assert parse([], prog="a", description="b", options=options, settings=settings)[1] == settings


def test_settings_files_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[train\n")
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "twice.json").write_text('{"train": {"seed": 1, "ema_rates": [], "seed": 2}}')
    (tmp_path / "a.yaml").write_text("train: 1")
    for name, reason in (
        ("a.toml", "is not TOML"),
        ("a.json", "is not JSON"),
        ("twice.json", 'is not JSON: "seed" is given twice'),
        ("a.yaml", "ends with .toml or .json"),
        ("b.toml", "no file"),
    ):
        with pytest.raises(ConfigError, match=f"--config: .*{reason}"):
            read_config_file(tmp_path / name)
    with pytest.raises(ConfigError, match="a table of settings"):
        toy_recipe().updated(read_config_file(tmp_path / "list.json"))


def options_of_verbs() -> Iterator[type[Config]]:
    for found in pkgutil.iter_modules(cli.__path__):
        module = importlib.import_module(f"triptych.cli.{found.name}")
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, Config) and cls.__module__ == module.__name__:
                yield cls


def test_the_help_of_an_option_without_a_default_says_what_happens_without_it() -> None:
    """What None means, or that it is required. Those of triptych import, which are read by hand, are on its page."""
    found = 0
    for cls in options_of_verbs():
        docs = field_docs(cls)
        for field in dataclasses.fields(cls) if docs else ():
            if field.default is None and field.name in cls.__annotations__:
                found += 1
                assert re.search(r"\bNone\b|^Required\b", docs[field.name]), f"{cls.__name__}.{field.name}: {docs[field.name]}"
    assert found > 100


def sections(config: Config) -> Iterator[type[Config]]:
    """The classes of its sections, of those that it may have too."""
    waiting: list[Any] = [type(config)]
    for field, annotation in field_types(type(config)).items():
        value = getattr(config, field)
        waiting += [type(each) for each in (value if isinstance(value, tuple) else [value])] + [annotation]
        if isinstance(value, Config):
            yield from sections(value)
    while waiting:
        found = waiting.pop()
        waiting += get_args(found)
        if isinstance(found, type) and issubclass(found, Config):
            yield found


def test_the_help_of_a_setting_that_may_be_none_says_what_that_means() -> None:
    """Of the settings of all recipes and metrics; those of a phase's optimizer are told together, by their class."""
    measuring = (ClipMetricConfig(), PairMetricConfig(), SetMetricConfig(), BitsPerDimConfig(), DoctorOptions())
    classes = {cls for each in (*map(load_recipe, recipes()), *measuring) for cls in sections(each)}
    found = 0
    for cls in classes - {PhaseOptimConfig}:
        docs = field_docs(cls)
        for field, annotation in field_types(cls).items():
            if type(None) in get_args(annotation):
                found += 1
                assert re.search(r"\bNone\b", docs[field]), f"{cls.__name__}.{field}: {docs[field]}"
    assert found > 100 and "None: as in the rest of the section." in str(PhaseOptimConfig.__doc__)
