"""Configurations: lossless dictionaries, and errors that name the setting."""

from __future__ import annotations

import json
import pickle
from dataclasses import field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.core.config import Config, config, spelled
from triptych.core.errors import ConfigError


@config
class Shape(Config):
    "Base of polymorphic sections."


@config
class Circle(Shape):
    radius: float = 1.0

    def validate(self) -> None:
        self.require(self.radius > 0, "radius", "a positive number")


@config
class Square(Shape):
    side: int = 2


@config
class Drawing(Config):
    shape: Shape = field(default_factory=Circle)
    name: str = "drawing"
    colour: Literal["red", "green", "blue"] = "red"
    weights: tuple[float, ...] = (1.0, 0.5)
    pair: tuple[int, str] = (1, "a")
    steps: int | str | None = None
    nested: Circle = field(default_factory=Circle)
    either: Circle | Square = field(default_factory=Circle)
    flag: bool = False


@given(
    st.builds(
        Drawing,
        shape=st.one_of(st.builds(Circle, radius=st.floats(1e-3, 1e9)), st.builds(Square, side=st.integers(-(2**63), 2**63 - 1))),
        either=st.one_of(st.builds(Circle, radius=st.floats(1e-3, 1e9)), st.builds(Square, side=st.integers(-(2**63), 2**63 - 1))),
        name=st.text(),
        colour=st.sampled_from(["red", "green", "blue"]),
        weights=st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
        steps=st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text()),
        flag=st.booleans(),
    )
)
def test_json_round_trip(drawing):
    assert Drawing.from_dict(json.loads(json.dumps(drawing.to_dict()))) == drawing


def test_values_are_spelled_for_people() -> None:
    assert [spelled(value) for value in ((0.1, 1.0), [], "a", None)] == ["0.1, 1.0", "nothing", "'a'", "None"]
    assert spelled(["a" * 500]) == "a" * 200 + "..."
    assert spelled([10**5000]) == "something of type list that is too long to show"


def test_a_subclass_is_named_by_its_kind():
    document = Drawing(shape=Square(side=3)).to_dict()
    assert document["shape"] == {"kind": f"{__name__}:Square", "side": 3}
    assert "kind" not in document["nested"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"colour": "gren"}, """colour: got 'gren', expected one of 'red', 'green', 'blue'; did you mean "green"?"""),
        ({"colr": "red"}, 'colr: unknown setting of Drawing; did you mean "colour"?'),
        ({"weights": [1, "x"]}, "weights: got 'x', expected a number"),
        ({"weights": 3}, "weights: got 3, expected a list of a number"),
        ({"pair": [1]}, "pair: got 1, expected 2 values"),
        ({"flag": 1}, "flag: got 1, expected true or false"),
        ({"name": 3}, "name: got 3, expected text"),
        ({"steps": 2.5}, "steps: got 2.5, expected a whole number or text or nothing"),
        ({"nested": {"radius": -1}}, "nested.radius: got -1.0, expected a positive number"),
        ({"nested": {"radius": True}}, "nested.radius: got True, expected a number"),
        ({"nested": 4}, "nested: got 4, expected a table of settings"),
        ({"shape": {"kind": "os:system"}}, "shape.kind: unknown 'os:system'"),
        ({"kind": "drawing"}, f"kind: got 'drawing', expected '{__name__}:Drawing'"),
        ({"shape": {"kind": "triptych.core.nowhere:X"}}, "shape.kind: unknown 'triptych.core.nowhere:X'"),
    ],
)
def test_errors_name_the_setting(values, message):
    with pytest.raises(ConfigError) as caught:
        Drawing.from_dict(values)
    assert str(caught.value).startswith(message)


@config
class Gallery(Config):
    drawings: tuple[Drawing, ...] = ()
    sizes: tuple[int | Circle | None, ...] = ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"drawings": [{}, {"nme": "a"}]}, 'drawings[1].nme: unknown setting of Drawing; did you mean "name"?'),
        ({"drawings": [{"colour": "red"}, {}, {"weights": ["x"]}]}, "drawings[2].weights: got 'x', expected a number"),
        ({"drawings": [{"nested": {"radius": -1}}]}, "drawings[0].nested.radius: got -1.0, expected a positive number"),
        ({"drawings": [3]}, "drawings[0]: got 3, expected a table of settings"),
        ({"sizes": [1, {"radius": 0}]}, "sizes[1].radius: got 0.0, expected a positive number"),
    ],
)
def test_an_error_in_a_list_of_tables_names_the_table(values, message):
    with pytest.raises(ConfigError) as caught:
        Gallery.from_dict(values)
    assert str(caught.value) == message


def test_a_reason_names_other_settings_as_the_user_knows_them():
    error = ConfigError("pick", "got 3 beside {}; leave out {}", ["of_all", "pick"])
    assert str(error) == "pick: got 3 beside of_all; leave out pick"
    named = error.inside("edit").renamed(lambda name: f"--{name.replace('_', '-')}")
    assert (named.setting, str(named)) == ("--edit.pick", "--edit.pick: got 3 beside --edit.of-all; leave out --edit.pick")
    assert str(ConfigError("pick", "got {}").renamed(str.upper)) == "PICK: got {}", "a user's braces are no places"
    given = ConfigError("pick", "got {0}, {x} and {} beside {}, without {} as {y}", ["edit", "mix"])
    assert str(given.inside("a")) == "a.pick: got {0}, {x} and {} beside a.edit, without a.mix as {y}"
    assert str(ConfigError("pick", "got 3", ["edit"])) == "pick: got 3"


def test_an_error_reaches_other_processes_whole():
    error = pickle.loads(pickle.dumps(ConfigError("a", "got 3 beside {}", ["b"]).inside("x")))
    assert isinstance(error, ConfigError) and str(error) == "x.a: got 3 beside x.b"
    assert (error.setting, error.reason, str(error.renamed(str.upper))) == ("x.a", "got 3 beside x.b", "X.A: got 3 beside X.B")


def test_a_missing_setting_is_named():
    @config
    class Needs(Config):
        size: int

    with pytest.raises(ConfigError, match="size: missing"):
        Needs.from_dict({})


def test_updated_keeps_the_rest():
    drawing = Drawing(shape=Square(side=3), name="x")
    changed = drawing.updated({"shape": {"side": 5}, "nested": {"radius": 2}, "weights": [1]})
    assert changed == Drawing(shape=Square(side=5), name="x", nested=Circle(radius=2.0), weights=(1.0,))
    assert drawing.shape == Square(side=3)
    with pytest.raises(ConfigError, match=r"shape.radius: unknown setting of Square"):
        drawing.updated({"shape": {"radius": 5}})
    assert drawing.updated({"shape": {"kind": f"{__name__}:Circle", "radius": 5}}).shape == Circle(radius=5.0)


def test_integers_are_numbers_and_dashes_are_underscores():
    assert Circle.from_dict({"radius": 3}).radius == 3.0

    @config
    class Dashed(Config):
        batch_size: int = 1

    assert Dashed.from_dict({"batch-size": 4}).batch_size == 4


def test_types_are_checked_of_what_python_made():
    Drawing(steps="all").check_types()
    with pytest.raises(ConfigError, match="steps: got 2.5, expected a whole number or text or nothing"):
        Drawing(steps=2.5).check_types()  # type: ignore[arg-type]


@config
class Numbers(Config):
    count: int = 1
    perhaps: int | None = None
    side: Literal[64, 128] = 64
    parts: int | tuple[str, ...] = 1
    sides: tuple[Literal[64, 128], ...] = ()


def test_a_whole_number_of_a_file_may_have_a_point_or_an_exponent():
    numbers = Numbers.from_dict({"count": 1e6, "perhaps": 2.0, "side": 128.0, "sides": [64.0]})
    assert repr(numbers) == repr(Numbers(count=10**6, perhaps=2, side=128, sides=(64,))), "of Python's type int"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 1e19}, "count: got 10000000000000000000, expected a whole number of at most 64 bits"),
        ({"perhaps": -(2**63) - 1}, "perhaps: got -9223372036854775809, expected a whole number of at most 64 bits"),
        ({"side": True}, "side: got True, expected one of 64, 128"),
        ({"parts": 0.5}, "parts: got 0.5, expected a whole number or a list of text"),
        ({"sides": 64}, "sides: got 64, expected a list of one of 64, 128"),
    ],
)
def test_a_number_that_is_none_of_the_allowed_is_refused(values, message):
    with pytest.raises(ConfigError) as caught:
        Numbers.from_dict(values)
    assert str(caught.value) == message


@config
class Ring(Circle):
    hole: float = 0.5

    def validate(self) -> None:
        self.require(self.hole < self.radius, "hole", "below radius")


def test_a_subclass_keeps_the_checks_of_its_base():
    assert Ring(radius=2.0, hole=1.0).hole == 1.0
    with pytest.raises(ConfigError, match="hole: got 1.0, expected below radius"):
        Ring(hole=1.0)
    with pytest.raises(ConfigError, match="radius: got -1.0"):
        Ring(radius=-1.0, hole=-2.0)  # right by its own check
    with pytest.raises(ConfigError, match="radius: got -1.0"):
        Ring(radius=-1.0)  # wrong by both: the base's comes first


def test_a_check_that_would_replace_those_of_the_bases_is_refused():
    with pytest.raises(TypeError, match="call it validate"):

        @config
        class Silent(Circle):
            def __post_init__(self) -> None:
                pass
