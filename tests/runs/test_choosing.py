"""`triptych init`: what is seen of images, and what is chosen for them. The measurements are made up, for they take minutes."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tests.data.pairs import as_map, write
from tests.data.pictures import encoded, picture, write_folder
from tests.runs.test_planning import MEMORY, PLAN
from triptych.cli import init, train
from triptych.cli.main import main
from triptych.core.batch import DataSpec, InputSpec
from triptych.core.errors import ConfigError, DataError
from triptych.data.config import DataConfig
from triptych.engine.distributed import close_world
from triptych.engine.run_directory import RunDirectory
from triptych.recipes.catalogue import load_recipe
from triptych.runs import choosing
from triptych.runs.choosing import Candidate, Choice, as_json, as_toml, augmentation, choose, few, settings_for
from triptych.runs.data_look import Look, Pairs, look
from triptych.runs.opening_lines import long_warmup
from triptych.runs.stored import outline

PHOTOS = Look(Path("/data/photos"), "folder", 3_000, (96, 200, 500), (300, 240), 3, None)
DIGITS = Look(Path("/data/mnist"), "mnist", 70_000, (28, 28, 28), (28, 28), 1, 10)
STREETS = Look(Path("/data/camvid"), "pairs", 468, (96, 96, 128), (128, 96), 3, None, Pairs("images", ("labels",), (12,), False, ()))
FEW = dataclasses.replace(PHOTOS, count=140)


@pytest.fixture
def machine(monkeypatch):
    """A machine of so many images a second, whatever the recipe, and seconds of a grid."""

    def of(rate: float, *, grid: float = 10.0, memory=MEMORY) -> None:
        def measured(config, *, directory, device, say, seconds=0.0):
            RunDirectory(Path(directory)).check()  # as a plan does
            train = config.train
            return dataclasses.replace(
                PLAN,
                training_images=1_000,
                batch=train.batch_size,
                at_once=train.microbatch or train.batch_size,
                images_per_step=train.batch_size,
                step_seconds=train.batch_size / rate,
                loader_rate=1e9,
                total_images=train.total_images,
                begin_seconds=25.0,
                grid_seconds=grid,
                validation_seconds=0.0 if train.validate_images == 0 else 2.0,
                memory=memory,
            )

        monkeypatch.setattr(choosing, "plan", measured)

        def screened(task, **_):
            assert task.settings["data"]["labels"] != "none" or not task.settings["model"].get("class_conditional")  # else no model
            return {"drawn": 1, "seconds": [task.batches[0] / rate]}

        monkeypatch.setattr(choosing, "measured_apart", screened)

    return of


def chosen(seen: Look, hours: float = 6.0, **given) -> Choice:
    return choose(seen, hours=hours, directory="runs/of/nobody", device="cpu", **given)


# What is seen


def test_photos_are_counted_and_measured(tmp_path):
    write_folder(tmp_path, ["a.png", "b.jpg"], size=(40, 30))
    write_folder(tmp_path, ["c.png"], size=(60, 20))
    seen = look(tmp_path)
    assert (seen.count, seen.sides, seen.channels, seen.classes, seen.pairs) == (3, (20, 30, 60), 3, None, None)
    assert seen.described() == "3 images, sides of 20 to 60 pixels, in colour, no classes (folder)"


def test_folders_are_classes_and_grey_is_seen(tmp_path):
    for k, name in enumerate(("cats/a.png", "cats/b.png", "dogs/c.png")):
        write(tmp_path / name, encoded(picture(32, 32, seed=k, channels=1)))
    seen = look(tmp_path)
    assert (seen.classes, seen.channels, seen.sides) == (2, 1, (32, 32, 32))
    assert "32x32, grey, 2 classes" in seen.described()


def pairs(root: Path, *, top: int, folders=("images", "labels"), count: int = 3) -> Path:
    for k in range(count):
        write(root / folders[0] / f"{k}.png", encoded(picture(32, 24, seed=k)))
        numbers = np.arange(32 * 24).reshape(24, 32) % (top + 1)
        write(root / folders[1] / f"{k}.png", as_map(numbers))
    return root


def test_pairs_are_seen_with_their_classes(tmp_path):
    pairs(tmp_path / "train", top=11)
    pairs(tmp_path / "val", top=11, count=2)
    seen = look(tmp_path)
    assert seen.pairs == Pairs("images", ("labels",), (12,), False, ()) and seen.count == 5


def test_pixels_of_no_class_are_no_class(tmp_path):
    pairs(tmp_path, top=3)
    write(tmp_path / "labels/0.png", as_map(np.full((24, 32), 255)))
    found = look(tmp_path)
    assert found.count == 3 and found.pairs is not None and found.pairs.num_classes == (4,) and found.pairs.dont_care
    for k in (1, 2):
        write(tmp_path / f"labels/{k}.png", as_map(np.full((24, 32), 255)))
    assert look(tmp_path).pairs == Pairs("images", (), (), False, ("labels",)), "white pictures are no maps"


@pytest.mark.parametrize(("numbers", "maps"), [(64, ("labels",)), (65, ())])
def test_a_map_has_at_most_sixty_four_numbers(tmp_path, numbers, maps):
    pairs(tmp_path, top=numbers - 1)
    found = look(tmp_path).pairs
    assert found is not None and (found.maps, found.num_classes) == (maps, (64,) * len(maps))


def test_a_folder_and_one_that_is_held_out_are_no_pairs(tmp_path):
    for name in ("photos", "val"):
        write_folder(tmp_path / name, ["0.png", "1.png"], size=(80, 64))
    assert look(tmp_path).pairs is None


def test_two_folders_of_photos_of_the_same_names_are_pairs(tmp_path):
    for folder in ("photos", "drawings"):
        write_folder(tmp_path / folder, ["a.png", "b.png"], size=(80, 64))
    assert look(tmp_path).pairs == Pairs("photos", (), (), False, ("drawings",))


def test_balanced_classes_are_no_pairs_but_where_it_is_said(tmp_path):
    for name in ("cat", "dog"):
        write_folder(tmp_path / name, ["0.png", "1.png"], size=(80, 64))
    seen = look(tmp_path)
    assert seen.pairs is None and (seen.count, seen.classes) == (4, 2)
    assert look(tmp_path, pairs=True).pairs == Pairs("cat", (), (), False, ("dog",))
    write_folder(tmp_path / "cat", ["0.jpg"])
    assert look(tmp_path).classes == 2
    with pytest.raises(DataError, match="has the same name but for its ending"):
        look(tmp_path, pairs=True)
    with pytest.raises(DataError, match="holds no pairs, two folders or more"):
        look(tmp_path / "cat", pairs=True)


def test_maps_without_images_are_no_pairs(tmp_path):
    for folder in ("instances", "labels"):
        write(tmp_path / folder / "0.png", as_map(np.eye(24, dtype=np.uint8)))
    with pytest.raises(DataError, match=r"pairs whose folders are all maps \(instances, labels\); the images to be made are missing$"):
        look(tmp_path)


def test_grey_photos_are_no_maps(tmp_path):
    """A map has few different numbers."""
    levels = np.arange(24 * 32, dtype=np.uint8).reshape(24, 32)
    for folder in ("labels", "photos"):
        write(tmp_path / folder / "0.png", as_map(levels if folder == "labels" else levels.T))
    assert look(tmp_path).pairs == Pairs("photos", (), (), False, ("labels",))


def test_an_array_is_seen_as_it_is(tmp_path):
    np.savez(tmp_path / "a.npz", arr_0=np.zeros((6, 20, 20, 1), np.uint8), arr_1=np.arange(6) % 3)
    seen = look(tmp_path / "a.npz")
    assert (seen.count, seen.sides, seen.shape, seen.channels, seen.classes) == (6, (20, 20, 20), (20, 20), 1, 3)
    np.savez(tmp_path / "b.npz", arr_0=np.zeros((6, 12, 10, 3), np.uint8))
    small = look(tmp_path / "b.npz")
    assert (small.count, small.sides, small.shape, small.channels) == (6, (10, 10, 12), (10, 12), 3)


@pytest.mark.parametrize("name", ["photos", "edges", "Labels", "depth_maps"])
def test_what_pairs_are_called(tmp_path, name):
    for folder in (name, "other"):
        write_folder(tmp_path / folder, ["0.png", "1.png"])
    seen = look(tmp_path).pairs
    assert seen is not None and look(tmp_path, pairs=False).classes == 2
    assert seen.target == (name if name == "photos" else "other"), "edges, maps and the like are what it is made of"


def test_a_bad_image_is_passed_over_and_said(tmp_path, machine):
    write_folder(tmp_path, [f"{k}.png" for k in range(9)], size=(40, 40))
    (tmp_path / "b.png").write_bytes(b"no image")
    machine(100.0)
    seen = look(tmp_path)
    assert seen.count == 10 and seen.sides == (40, 40, 40) and seen.bad is not None and "b.png" in seen.bad
    choice = chosen(dataclasses.replace(seen, count=20_000))
    assert choice.config.data.on_error == "skip" and any("b.png" in why for what, why in choice.reasons if what == "bad images")
    for k in range(9):
        (tmp_path / f"{k}.png").unlink()
    with pytest.raises(DataError, match=r"b\.png"):
        look(tmp_path)


def test_a_bad_image_with_a_good_header_is_passed_over_when_it_is_met(machine, monkeypatch):
    """Anything else that is wrong with the images ends the choice."""
    machine(1e3)
    screened, wrong = choosing.measured_apart, "photos/7.jpg: not an image that can be read; repair or remove the file"
    readable = ["skip"]

    def reading(task, **given):
        if task.settings["data"].get("on_error") not in readable:
            raise DataError(f"{wrong}, or set data.on_error to skip")
        return screened(task, **given)

    monkeypatch.setattr(choosing, "measured_apart", reading)
    choice = chosen(PHOTOS)
    assert choice.settings["data"]["on_error"] == "skip"
    assert ("bad images", f"passed over (data.on_error skip), as {wrong}") in choice.reasons
    readable.clear()
    with pytest.raises(DataError, match="7.jpg"):
        chosen(PHOTOS)


@pytest.mark.parametrize("kind", ["junk", "empty", "cut"])
def test_a_bad_map_is_passed_over_and_said(tmp_path, kind):
    """Maps are no photos for one of them that cannot be read."""
    pairs(tmp_path, top=3)
    good = (tmp_path / "labels" / "1.png").read_bytes()
    bad = {"junk": b"no image", "empty": b"", "cut": good[: len(good) // 2]}[kind]
    (tmp_path / "labels" / "1.png").write_bytes(bad)
    seen = look(tmp_path)
    assert seen.pairs == Pairs("images", ("labels",), (4,), False, ()) and seen.bad is not None and "labels/1.png" in seen.bad
    for k in range(3):
        (tmp_path / "labels" / f"{k}.png").write_bytes(bad)
    with pytest.raises(DataError, match=r"labels/0\.png: "):
        look(tmp_path)


def test_folders_of_other_names_are_classes_and_no_pairs(tmp_path):
    write_folder(tmp_path, ["one/a.png", "one/b.png", "two/c.png"])
    seen = look(tmp_path)
    assert seen.pairs is None and seen.classes == 2


def test_advice_about_classes_names_no_setting_that_init_lacks(tmp_path, capsys):
    """A training is told to set data.labels."""
    write_folder(tmp_path, ["cat/a.png", "dog/b.png"], size=(32, 32))
    (tmp_path / "emu").mkdir()
    assert main(["init", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/emu: a sub-folder without images, but sub-folders are classes: move or mend it, or choose a recipe" in said
    assert "train it with --data.labels none, which init does not set" in said and "set data.labels" not in said


def test_nothing_to_learn_is_said(tmp_path):
    with pytest.raises(DataError, match="no images to train on"):
        look(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        look(tmp_path / "nothing")


# What is chosen


@pytest.mark.parametrize("hours", [0.1, 1.0, 6.0, 100.0])
@pytest.mark.parametrize("seen", [PHOTOS, DIGITS, STREETS, FEW], ids=lambda seen: seen.path.name + str(seen.count))
def test_the_run_fills_the_hours(seen, hours, machine):
    machine(20.0)
    choice = chosen(seen, hours)
    settings = choice.config.train
    grids = -(-settings.total_images // settings.sample_every)  # type: ignore[operator]
    took = 25.0 + settings.total_images / 20.0 + grids * (10.0 * settings.sample_count / samples_of_the_recipe(choice) + 2.0)
    saves = -(-settings.total_images // settings.checkpoint_every)  # type: ignore[operator]
    took += saves * PLAN.checkpoint_seconds
    if settings.evaluate_every is not None:
        took += PLAN.reference_seconds + -(-settings.total_images // settings.evaluate_every) * PLAN.evaluation_seconds
    assert 0.9 * hours * 3600 < took < 1.05 * hours * 3600
    assert settings.total_images % settings.batch_size == 0


@pytest.mark.parametrize(("rate", "share"), [(100.0, 0.1), (400.0, None)])
def test_the_learning_rate_rises_over_a_tenth_of_a_short_run(machine, rate, share):
    """That of glow-cifar10 rises over 500,000 images, a quarter of what six hours see at 100 a second."""
    machine(rate)
    choice = chosen(dataclasses.replace(PHOTOS, sides=(48, 60, 62)), family="flow")
    assert choice.recipe == "glow-cifar10" and choice.config.optim.warmup_share == share
    assert not list(long_warmup(choice.config))
    assert ("rises over" in dict(choice.reasons).get("learning rate", "")) == (share is not None)


def test_what_takes_long_beside_the_steps_is_done_less_often():
    """In 1,000 seconds a tenth goes to each: checkpoints of 20 s five times, evaluations of 50 s once after 40 s of the reference."""
    found = dataclasses.replace(PLAN, checkpoint_seconds=20.0)
    assert choosing.checkpoints(found, 1_000) == (5, 100.0)
    assert choosing.checkpoints(PLAN, 1_000) == (10, pytest.approx(0.1))
    assert choosing.checkpoints(found, 10) == (1, 20.0)
    assert choosing.evaluated(PLAN, 1_000) == (1, 90.0)
    assert choosing.evaluated(PLAN, 100_000) == (4, 240.0)
    assert choosing.evaluated(PLAN, 500) == (0, 0.0)


def test_a_long_run_of_a_gan_is_evaluated_and_a_short_one_is_not(machine):
    machine(20.0)
    long, short = chosen(FEW, hours=6.0), chosen(FEW, hours=0.5)
    train = long.config.train
    assert train.evaluate_every is not None and -(-train.total_images // train.evaluate_every) == 4
    assert (train.evaluate_features, train.evaluate_count, train.best_by) == ("random", 500, "frechet")
    assert "4 on the way, of 500 samples" in dict(long.reasons)["evaluations"]
    assert short.config.train.evaluate_every is None and short.config.train.best_by == "validation"


def test_a_single_image_is_learned_without_evaluations(machine):
    """Its distance to samples needs a covariance."""
    machine(1e3)
    train = {count: chosen(dataclasses.replace(PHOTOS, count=count), hours=6).config.train for count in (1, 2, 3)}
    assert [train[count].evaluate_every is None for count in (1, 2, 3)] == [True, True, False]
    assert train[1].best_by == "validation"


@pytest.mark.parametrize(("side", "recipe"), [(32, "adm-mnist"), (33, "flow-small")])
def test_small_are_grey_images_of_32_pixels_at_most(side, recipe):
    seen = dataclasses.replace(DIGITS, sides=(28, 28, side))
    assert choosing._candidates(seen, "diffusion", on_cpu=True)[0].recipe == recipe


def test_the_large_recipe_for_pairs_is_for_gpus(machine):
    assert [one.recipe for one in choosing._candidates(STREETS, "gan", on_cpu=True)] == ["spade-camvid"] * 2
    assert choosing._candidates(STREETS, "gan", on_cpu=False)[0].recipe == "spade-coco256"


def samples_of_the_recipe(choice: Choice) -> int:
    return load_recipe(choice.recipe).train.sample_count


@pytest.mark.parametrize(
    ("seen", "rate", "family", "recipe", "size"),
    [
        (PHOTOS, 1e4, None, "edm-photos64", 64),
        (PHOTOS, 30.0, None, "flow-small", 64),
        (PHOTOS, 5.0, None, "flow-small", 32),
        (PHOTOS, 1e4, "gan", "stylegan2-photos64", 64),  # 128 would be larger than some of them
        (dataclasses.replace(PHOTOS, sides=(200, 300, 500)), 1e4, "gan", "stylegan2-auto128", 128),
        (PHOTOS, 1.0, "flow", "glow-digits", 32),
        (DIGITS, 1e3, None, "adm-mnist", 28),
        (DIGITS, 1.0, None, "edm-digits", 28),
        (DIGITS, 1.0, "gan", "stylegan2-mnist", 32),
        (DIGITS, 1e3, "flow", "glow-mnist", 28),
        (STREETS, 1.0, None, "spade-camvid", 64),
        (dataclasses.replace(STREETS, pairs=Pairs("a", (), (), False, ("b",))), 1.0, None, "pix2pixhd-camvid", 64),
        (FEW, 1.0, None, "stylegan2-digits", 32),
    ],
)
def test_the_recipe_by_images_speed_and_family(seen, rate, family, recipe, size, machine):
    machine(rate)
    choice = chosen(seen, family=family)
    assert (choice.recipe, choice.config.data.image_size) == (recipe, size)
    assert [what for what, _ in choice.reasons][:4] == ["data", "family", "recipe", "size"]


def candidates() -> list[tuple[Look, Candidate]]:
    squares = {side: dataclasses.replace(DIGITS, sides=(side, side, side), shape=(side, side)) for side in (16, 20, 24, 27, 28, 32)}
    grey = dataclasses.replace(PHOTOS, channels=1)
    two = dataclasses.replace(STREETS, pairs=Pairs("a", (), (), False, ("b",)))
    found = [(seen, one) for seen in (PHOTOS, grey) for family in choosing.PHOTOS.values() for one in family]
    found += [(seen, one) for seen in squares.values() for family in choosing.SMALL.values() for one in family]
    return [*found, *((STREETS, one) for one in choosing.PAIRS), *((two, one) for one in choosing.TWO_PHOTOS)]


@pytest.mark.parametrize(
    ("seen", "candidate"), candidates(), ids=lambda one: one.recipe if isinstance(one, Candidate) else f"{one.source}{one.sides[0]}"
)
def test_every_candidate_can_be_built_at_its_size(seen, candidate):
    config = load_recipe(candidate.recipe).updated(settings_for(seen, candidate, []))
    kind = {"labels": InputSpec(name="labels", kind="classes", num_classes=12), "b": InputSpec(name="b", kind="image", channels=3)}
    data = config.data
    spec = DataSpec(
        image_size=data.image_size,
        width=getattr(data, "width", None),
        channels=seen.channels,
        num_classes=seen.classes,
        inputs=() if seen.pairs is None else tuple(kind[name] for name in (*seen.pairs.maps, *seen.pairs.conditions)),
    )
    assert sum(p.numel() for p in outline(config, spec).parameters()) > 1e4


def test_details_of_the_data(machine):
    machine(1.0)
    photos, digits, streets = (chosen(seen).config for seen in (PHOTOS, DIGITS, STREETS))
    assert photos.data.channels == 3 and photos.data.labels == "none" and not photos.model.class_conditional  # type: ignore[attr-defined]
    assert digits.data.channels == 1 and digits.model.class_conditional and not digits.data.flip  # type: ignore[attr-defined]
    assert (streets.data.width, streets.data.maps, streets.data.num_classes) == (96, ("labels",), (12,))  # type: ignore[attr-defined]
    assert streets.optim.decay_start == streets.train.total_images // 2
    padded = chosen(DIGITS, family="gan").config.data
    assert (padded.pad, padded.enlarge) == (2, False)
    small = chosen(dataclasses.replace(PHOTOS, sides=(20, 40, 60))).config.data
    assert small.enlarge and small.image_size == 32
    assert photos.data.enlarge, "for only some of the files were looked at"


@pytest.mark.parametrize(("side", "pad", "enlarged"), [(24, 4, False), (27, 0, True), (28, 2, False), (29, 0, True), (32, 0, False)])
def test_a_border_is_as_wide_on_both_sides(side, pad, enlarged):
    """A pixel more on one side cannot be said, and without it these images would be too small."""
    seen = dataclasses.replace(DIGITS, sides=(side, side, side), shape=(side, side))
    candidate = Candidate("stylegan2-mnist", 32, 0, "")  # which has a border of 2 pixels, for MNIST
    data = load_recipe(candidate.recipe).updated(settings_for(seen, candidate, [])).data
    assert isinstance(data, DataConfig) and (data.pad, data.enlarge) == (pad, enlarged)


def test_a_few_small_images_do_not_choose_the_size(tmp_path, machine):
    """Nine of ten have to be as large; the others are enlarged."""
    write_folder(tmp_path, [f"{k}.png" for k in range(19)], size=(90, 70))
    write_folder(tmp_path, ["small.png"], size=(20, 20))
    machine(1e4)
    choice = chosen(look(tmp_path), family="diffusion")
    assert choice.config.data.image_size == 64 and choice.config.data.enlarge
    assert dict(choice.reasons)["size"] == "64x64: the largest there is for such images, to which smaller images are enlarged"
    write_folder(tmp_path, ["small2.png", "small3.png"], size=(20, 20))
    assert chosen(look(tmp_path), family="diffusion").config.data.image_size == 32


@pytest.mark.parametrize(
    ("count", "classes", "said"),
    [
        (10, 2, "learned: 2 classes"),
        (59, 3, "not learned: 3 classes are too many for 59 images"),
        (60, 3, "learned: 3 classes"),
        (60, 4, "not learned: 4 classes are too many"),
        (60, 1, "not learned: 1 class is all that there is"),
        (60, None, "none: the images have no classes"),
    ],
)
def test_two_classes_are_learned_or_as_many_as_have_twenty_images(count, classes, said):
    reasons: list[tuple[str, str]] = []
    seen = dataclasses.replace(DIGITS, count=count, classes=classes)
    settings = settings_for(seen, Candidate("edm-digits", None, 0, ""), reasons)
    learned = said.startswith("learned")
    assert dict(reasons)["labels"].startswith(said)
    assert (settings["data"]["labels"], settings["model"]["class_conditional"]) == ("auto" if learned else "none", learned)


@pytest.mark.parametrize(("shape", "width"), [((96, 96), 64), ((60, 96), 64), ((176, 96), 128), ((168, 96), 128), ((960, 96), 128)])
def test_pairs_are_as_wide_as_they_are_high_to_twice_that(shape, width):
    """In steps of 32, at a height of 64."""
    data = choosing.data_settings(dataclasses.replace(STREETS, shape=shape), Candidate("spade-camvid", 64, 0, ""))["data"]
    assert data["width"] == width


def test_a_run_has_a_hundred_lines_of_metrics(machine):
    """Or one after each step."""
    machine(20.0)
    for hours, few_steps in ((6.0, False), (0.01, True)):
        config = chosen(PHOTOS, hours=hours, family="flow").config
        steps = config.train.total_images // config.train.batch_size
        assert (steps < 100) == few_steps and config.log.every == max(1, steps // 100) * config.train.batch_size


def test_pairs_are_for_gans_alone(machine):
    machine(1.0)
    with pytest.raises(ConfigError, match="pairs are learned by GANs alone"):
        chosen(STREETS, family="flow")


@pytest.mark.parametrize(("count", "p"), [(500, 0.3), (5_000, 0.15), (50_000, 0.12), (100_000, 0.0)])
def test_augmentation_by_the_number_of_images(count, p):
    changes = augmentation(dataclasses.replace(PHOTOS, count=count), "edm-photos64", [])
    assert changes["model"]["augmentation"]["p"] == p


def test_grey_photos_are_neither_turned_nor_mirrored(machine):
    """What the reason says, of a recipe whose own augmentation does both."""
    machine(1e4)
    assert load_recipe("edm-photos64").model.augmentation.p > 0  # type: ignore[attr-defined]
    choice = chosen(dataclasses.replace(PHOTOS, channels=1, count=20_000))
    assert choice.recipe == "edm-photos64" and "not mirrored" in dict(choice.reasons)["augmentation"]
    assert choice.config.model.augmentation.p == 0 and not choice.config.data.flip  # type: ignore[attr-defined]


@pytest.mark.parametrize("changes", [{"count": 20_000}, {"channels": 1}])
def test_what_is_said_to_be_augmented_no_more_is_not_moved(machine, changes):
    """Of glow-cifar10 too, whose own images are."""
    assert load_recipe("glow-cifar10").data.augment == "shift"  # type: ignore[attr-defined]
    machine(400.0)
    choice = chosen(dataclasses.replace(PHOTOS, sides=(48, 60, 62), **changes), family="flow")
    assert choice.recipe == "glow-cifar10" and "no more: " in dict(choice.reasons)["augmentation"]
    assert choice.config.data.augment == "none"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("recipe", "count", "augment"), [("flow-small", 999, "shift"), ("flow-small", 1_000, "none"), ("adm-mnist", 1_000, "shift")]
)
def test_a_small_network_needs_fewer_images_to_go_without_moved_ones(recipe, count, augment):
    reasons: list[tuple[str, str]] = []
    changes = augmentation(dataclasses.replace(PHOTOS, count=count), recipe, reasons)
    assert changes["data"]["augment"] == augment and ("enough" in reasons[0][1]) == (augment == "none")


def test_few_images_are_said_to_be_copied():
    (line,) = few(dataclasses.replace(PHOTOS, count=999), "stylegan2-digits")
    assert "copies" in line and "--init-from" in line and "ADA" in line
    (line,) = few(STREETS, "spade-camvid")
    assert "468 pairs" in line and "--init-from" in line
    assert not few(dataclasses.replace(PHOTOS, count=1_000), "stylegan2-digits")
    (line,) = few(dataclasses.replace(PHOTOS, count=500), "edm-photos64")
    assert "Augmentation is on" in line and line.startswith("500 images are fewer than 1,000: ")
    (line,) = few(dataclasses.replace(PHOTOS, count=1), "edm-photos64")
    assert line.startswith("1 image is fewer than 1,000: ")


def test_few_grey_images_are_not_called_enough():
    reasons: list[tuple[str, str]] = []
    grey = dataclasses.replace(PHOTOS, count=500, channels=1)
    assert augmentation(grey, "glow-digits", reasons) == {"data": {"augment": "none"}}
    ((_, why),) = reasons
    assert "enough" not in why and "characters that are moved or turned" in why
    (line,) = few(grey, "edm-digits")
    assert "A shorter run makes fewer" in line and "ugmentation is on" not in line


@pytest.mark.parametrize(("hours", "rate", "ema"), [(0.05, 5.0, 0.9), (1.0, 2.0, 0.99), (6.0, 10.0, 0.999), (100.0, 20.0, 0.9999)])
def test_the_average_goes_with_the_number_of_steps(hours, rate, ema, machine):
    machine(rate)
    train = chosen(DIGITS, hours=hours, family="diffusion").config.train
    assert train.ema_rates == (ema,)
    assert 1 / (1 - ema) < train.total_images / train.batch_size


def test_an_average_that_starts_late_starts_within_the_first_tenth(machine):
    machine(1.0)
    train = chosen(STREETS, hours=0.5).config.train
    assert 0 < train.ema_start == train.total_images // train.batch_size // 10 * train.batch_size < 1_200
    assert chosen(STREETS, hours=10.0).config.train.ema_start == 1_200


def test_a_slow_machine_takes_smaller_batches(machine):
    machine(1.0)
    choice = chosen(PHOTOS, hours=1.0)
    assert choice.config.train.batch_size == 8  # 64 would be 56 steps
    machine(1000.0)
    assert chosen(PHOTOS, hours=1.0).config.train.batch_size == 128
    machine(20.0)
    assert chosen(PHOTOS, hours=0.9).config.train.batch_size == 64  # 1,012 steps
    assert chosen(PHOTOS, hours=0.8).config.train.batch_size == 32


def test_what_does_not_fit_into_memory_is_cut(machine):
    tight = dataclasses.replace(MEMORY, free_bytes=2 * 10**9 + 2 * 10**8)
    machine(1000.0, memory=tight)
    assert tight.largest == 4
    choice = chosen(PHOTOS)
    assert choice.config.train.microbatch == 4 and dict(choice.reasons)["microbatch"]
    whole = dataclasses.replace(tight, divisible=False)
    machine(1000.0, memory=whole)
    assert chosen(PHOTOS).config.train.batch_size == whole.largest


@pytest.mark.parametrize(("most", "microbatch"), [(128, None), (127, 127)])
def test_what_just_fits_is_not_cut(machine, most, microbatch):
    machine(1000.0, memory=dataclasses.replace(MEMORY, per_image=0.0, most=most))
    choice = chosen(PHOTOS, hours=1.0)
    assert (choice.config.train.batch_size, choice.config.train.microbatch) == (128, microbatch)
    assert ("microbatch" in dict(choice.reasons)) == (microbatch is not None)


def test_what_a_plan_warns_of_is_said(machine, monkeypatch):
    """Of the run as it was chosen: its length, and the microbatch that fits."""
    machine(1e4)
    measured = choosing.plan
    monkeypatch.setattr(choosing, "plan", lambda config, **given: dataclasses.replace(measured(config, **given), free_disk=1))
    epochs, disk = chosen(PHOTOS, hours=2.0).warnings
    assert "checkpoints and snapshots take up to 4 MB and the disk has 1" in disk and "of its 1,000 images" in epochs
    assert len(chosen(PHOTOS, hours=0.1).warnings) == 1
    machine(1000.0, memory=dataclasses.replace(MEMORY, free_bytes=2 * 10**9 + 2 * 10**8))
    assert not chosen(PHOTOS, hours=1.0).warnings


def test_grids_that_take_long_have_fewer_samples(machine):
    machine(20.0, grid=640.0)  # ten seconds a sample
    train = chosen(PHOTOS, hours=0.5).config.train
    assert train.sample_count == 18 and train.sample_every == train.total_images  # a tenth of half an hour


def test_a_network_that_is_too_slow_to_measure_is_passed_over(machine, monkeypatch):
    machine(1e4)

    def slow(task, **_):
        raise choosing.RunError("it took too long: give a smaller --train.microbatch")

    monkeypatch.setattr(choosing, "measured_apart", slow)
    said = list[str]()
    choice = chosen(PHOTOS, say=said.append)
    assert choice.config.data.image_size == 32
    assert said.count("it was not measured: it took too long") == 3 and not any("0 images in the time" in line for line in said)
    reasons = dict(choice.reasons)
    assert reasons["recipe"].endswith("not measured; larger ones would see too few or could not be measured")


@pytest.mark.parametrize(("hours", "limit"), [(0.05, 45.0), (6.0, 90.0)])
def test_looking_takes_a_quarter_of_the_time_at_most(machine, monkeypatch, hours, limit):
    machine(1e4)
    limits = list[float]()

    def screened(task, *, limit_seconds):
        limits.append(limit_seconds)
        return {"drawn": 1, "seconds": [task.batches[0] / 1e4]}

    monkeypatch.setattr(choosing, "measured_apart", screened)
    chosen(PHOTOS, hours=hours)
    assert set(limits) == {limit}


# The file


@pytest.mark.parametrize("seen", [PHOTOS, DIGITS, STREETS, FEW], ids=lambda seen: seen.path.name + str(seen.count))
def test_the_file_says_the_same_as_toml_and_as_json(seen, machine, tmp_path):
    machine(3.0)
    choice = chosen(dataclasses.replace(seen, path=Path('/data/a "b" \\ \x7f é')))
    texts = {"a.toml": as_toml(choice, run="runs/a", head="written"), "a.json": as_json(choice, run="runs/a")}
    assert tomllib.loads(texts["a.toml"])["recipe"] == json.loads(texts["a.json"])["recipe"] == choice.recipe
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        arguments = ["--config", str(tmp_path / name)]
        base, rest = train.base_and_settings(arguments, usage="")
        options, config = train.configure(base, rest)
        assert config == choice.config and options.run == "runs/a"
    assert all(f"# {what}: " in texts["a.toml"] for what, _ in choice.reasons)


def test_a_file_and_a_run_are_named_like_the_images_but_never_like_options(machine, tmp_path, monkeypatch, capsys):
    machine(3.0)
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "-photos-.v2", ["0.png"], size=(40, 36))
    assert main(["init", "./-photos-.v2", "--hours", "0.011"]) == 0
    assert capsys.readouterr().out.endswith("train it: triptych train --config photos.toml\n")
    assert tomllib.loads(Path("photos.toml").read_text())["run"] == "runs/photos"


def test_init_and_then_train_without_another_flag(machine, tmp_path, monkeypatch, capsys):
    machine(3.0)
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "photos", [f"{k}.png" for k in range(12)], size=(40, 36))
    assert main(["init", "photos", "--hours", "0.011", "--device", "cpu", "--run", "there"]) == 0
    shown = capsys.readouterr().out
    assert "expect copies" in shown and shown.endswith("train it: triptych train --config photos.toml --device cpu\n")
    assert main(["init", "photos", "--hours", "0.011"]) == 2
    assert "--out: photos.toml is there already" in capsys.readouterr().err
    assert main(["init", "photos", "--out", "photos/0.png/photos.toml"]) == 2
    assert "photos/0.png is a file; choose another --out" in capsys.readouterr().err
    text = Path("photos.toml").read_text()
    total = tomllib.loads(text)["train"]["total_images"]
    Path("photos.toml").write_text(text.replace(f"total_images = {total}", "total_images = 8"))
    assert main(["train", "--config", "photos.toml", "--device", "cpu"]) == 0
    close_world()
    assert (tmp_path / "there/checkpoints/000000008").is_dir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "there").rename(tmp_path / "runs/there")
    again = ["init", "photos", "--hours", "0.011", "--device", "cpu", "--out", "new/again.toml"]
    assert main(again) == 0, "beside the runs that are there, in a folder that is made"
    assert tomllib.loads(Path("new/again.toml").read_text())["run"] == "runs/photos"
    capsys.readouterr()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").touch()
    for run, line in (
        ("runs/there", "--run: got 'runs/there', which is a run already"),
        ("mine", "mine is not a run: it has no"),
    ):
        assert main([*again, "--out", "third.toml", "--run", run]) == 2
        said = capsys.readouterr().err
        assert line in said and said.count("\n") == 1 and not Path("third.toml").exists(), "before anything is measured"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "no images given"),
        ([""], "no images given"),
        (["--hours", "3"], "where the images are expected"),
        (["nothing"], "does not exist"),
        (["there", "--hours", "0"], "--hours: got 0.0, expected 0.01 to 10,000"),
        (["there", "--famly", "gan"], 'unknown setting; did you mean "--family"?'),
        (["there", "--out", "a.txt"], "--out: got 'a.txt', expected a name that ends with .toml or .json"),
        (["there"], "no images to train on"),
    ],
)
def test_what_cannot_be_used_is_one_line(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["init", *arguments]) == 2
    assert line in capsys.readouterr().err and not list(tmp_path.glob("*.toml"))


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="has no /proc")
@pytest.mark.parametrize("out", ["/proc/x.toml", "/proc/new/x.json"])
def test_a_place_that_takes_no_files_is_refused_before_anything_is_measured(out, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(choosing, "choose", lambda *_, **__: pytest.fail())
    write_folder(tmp_path / "photos", ["0.png"], size=(40, 36))
    assert main(["init", str(tmp_path / "photos"), "--out", out]) == 2
    said = capsys.readouterr().err
    assert f"cannot write {out}: " in said and "choose another --out" in said and said.count("\n") == 1


def test_a_run_directory_that_is_free(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert init.free_run("cats") == "runs/cats"
    (tmp_path / "runs/cats").mkdir(parents=True)
    (tmp_path / "runs/cats-2").mkdir()
    assert init.free_run("cats") == "runs/cats-3"
