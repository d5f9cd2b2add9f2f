"""Everything that comes from elsewhere is a bounded type."""

import importlib
import json
import math
import pkgutil
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

import coordinator
from coordinator import bounds
from coordinator.errors import ProtocolViolation
from coordinator.realtime import protocol

# Made here for people and programs, never decoded from what others wrote.
OUTGOING = {
    "coordinator.doctor.findings.Finding",
    "coordinator.queues.listener.QueueState",
}
# Anything JSON can hold, kept for the user's own code and handed back to it; the bytes of its row bound it.
HANDED_BACK = {"coordinator.tables.progress.Progress.results.value"}


def _structs():
    for module in pkgutil.walk_packages(coordinator.__path__, "coordinator."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, todo = set(), [msgspec.Struct]
    while todo:
        for each in todo.pop().__subclasses__():
            if each not in found:
                found.add(each)
                todo.append(each)
    return sorted(
        (each for each in found if each.__module__.startswith("coordinator.")),
        key=lambda each: (each.__module__, each.__qualname__),
    )


def unbounded(kind, path):
    """The paths of what has no bounds in a type."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            low = kind.ge if kind.ge is not None else kind.gt
            high = kind.le if kind.le is not None else kind.lt
            return [] if low is not None and high is not None else [path]
        case inspect.StrType() | inspect.BytesType():
            return [] if kind.max_length is not None else [path]
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            own = [] if kind.max_length is not None else [path]
            return [*own, *unbounded(kind.item_type, f"{path}[]")]
        case inspect.TupleType():
            return [
                fault for n, item in enumerate(kind.item_types) for fault in unbounded(item, f"{path}[{n}]")
            ]
        case inspect.DictType():
            own = [] if kind.max_length is not None else [path]
            return [
                *own,
                *unbounded(kind.key_type, f"{path}.key"),
                *unbounded(kind.value_type, f"{path}.value"),
            ]
        case inspect.UnionType():
            return [fault for each in kind.types for fault in unbounded(each, path)]
        case inspect.Metadata():
            return unbounded(kind.type, path)
        case inspect.AnyType():
            return [path]
        case _:
            return []  # bool, None, words listed, other structs (walked by themselves), raw items


def faults_of(struct):
    described = inspect.type_info(struct)
    while isinstance(described, inspect.Metadata):
        described = described.type
    return [
        fault
        for field in described.fields
        for fault in unbounded(field.type, f"{struct.__module__}.{struct.__qualname__}.{field.name}")
    ]


def _name(struct):
    return f"{struct.__module__}.{struct.__qualname__}"


@pytest.mark.parametrize("struct", [s for s in _structs() if _name(s) not in OUTGOING], ids=_name)
def test_every_field_that_comes_from_elsewhere_has_bounds(struct):
    assert set(faults_of(struct)) <= HANDED_BACK


def test_what_is_exempt_is_there():
    structs = {_name(struct): struct for struct in _structs()}
    assert structs.keys() >= OUTGOING
    for path in HANDED_BACK:
        owner = path.rsplit(".", 2)[0]
        assert path in faults_of(structs[owner])


def decode(kind, value):
    return msgspec.json.decode(msgspec.json.encode(value), type=kind)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (bounds.Count, [0, 1, bounds.MAX_COUNT], [-1, bounds.MAX_COUNT + 1, 1.5, "1"]),
        (bounds.Held, [0, 1_000_000], [-1, 1_000_001]),
        (bounds.Number, [0, 2**63 - 1], [-1, 2**63]),
        (bounds.Moment, [0, 0.0, 1e9, bounds.LAST_MOMENT], [-1, 1e12, 1e300]),
        (bounds.Duration, [0, 3.5], [-0.1, 1e300]),
        (bounds.Offset, [-5, 5], [-1e300, 1e11]),
        (bounds.Rate, [0, 1e6], [-1, 1e300]),
        (bounds.Share, [0.1, 1], [0, 1.1]),
        (
            bounds.Name,
            ["orders-in", "a", "ordernumber.dat", "MyLeaderCoordinatorTask"],
            ["", "a/b", "..", ".a", "a.", "a b", "a\n", "ä", "x" * 129],
        ),
        (bounds.Instance, ["0af3", "i-a", "fa_1"], ["", "a/b", "a.b", "x" * 65, "a\n"]),
        (bounds.Text, ["", "node 7 ü 😀"], ["a\nb", "\x00", "x" * 201, "a\u2028"]),
        (bounds.Label, ["queue.GetMessages"], [""]),
        (bounds.LongText, ["", "a\n\tb"], ["\x00", "x" * 2001]),
        (bounds.KeyText, ["", "a b/ü\n", "x" * 1024], ["x" * 1025, 1]),
        (bounds.Remark, ["", "two\nlines", "x" * 32_768], ["x" * 32_769]),
        (bounds.Figure, [-1e300, 0, 1e300], [1.1e300, -1.1e300, "1"]),
        (bounds.Word, ["", "polling", "step down"], ["<b>", "x" * 33]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_type_takes_what_is_within_its_bounds_and_nothing_else(kind, good, bad):
    for value in good:
        assert decode(kind, value) == value
    for value in bad:
        with pytest.raises(msgspec.ValidationError):
            decode(kind, value)


@pytest.mark.parametrize("value", [10**400, "x", None, True, math.inf, math.nan, -1, 1e12])
def test_what_no_calendar_shows_is_no_moment(value):
    assert not bounds.is_moment(value)


@given(st.text())
def test_whatever_is_said_fits_a_line(text):
    assert decode(bounds.Text, bounds.one_line(text)) == bounds.one_line(text)


HELLO = {
    "type": "hello",
    "version": 1,
    "worker": "w",
    "instance": "i",
    "host": "h",
    "pid": 1,
    "started_at": 1.0,
    "software": "s",
    "prefix": "kennel-",
    "state": {},
}


def gate(**fields):
    return {"state": {"gates": [{"name": "start"} | fields]}}


@pytest.mark.parametrize(
    "part",
    [
        {"state": {"requests": {"x": 10**400}}},
        {"state": {"requests": {"x": -1}}},
        {"state": {"requests": {"x\n": 1}}},
        gate(name="a/b"),
        gate(name=""),
        gate(epoch=10**400),
        gate(offset_seconds=1e300),
        {"state": {"elections": [{"name": "e", "remaining_seconds": 1e300}]}},
        {"state": {"sequences": [{"name": "s", "last": 10**30}]}},
        {"state": {"listeners": [{"queue": "q", "done": 10**30}]}},
        {"state": {"listeners": [{"queue": "q", "in_hand": 10**15}]}},
        {"state": {"listeners": [{"queue": "q", "active_tasks": 1_000_001}]}},
        gate(inside=10**15),
        {"started_at": 1e300},
        {"instance": "a/b"},
        {"pid": 10**30},
        {"worker": "\x00"},
        {"worker": ""},
        {"host": "x" * 10_000},
    ],
    ids=str,
)
def test_a_frame_that_no_page_could_show_is_refused_at_the_door(part):
    assert protocol.decode_from_worker(msgspec.json.encode(HELLO))
    with pytest.raises(ProtocolViolation):
        protocol.decode_from_worker(json.dumps(HELLO | part))


@pytest.mark.parametrize("mark", ["\x85", "\x9b", "\u202e", "\u2066", "\u2028", "\x7f"])
def test_no_text_holds_marks_that_let_it_look_like_another(mark: str) -> None:
    for bound in (bounds.Text, bounds.Label, bounds.Reason):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(f"a{mark}gnp.exe", bound)
        assert msgspec.convert(bounds.one_line(f"a{mark}gnp.exe"), bound) == "a gnp.exe"


@pytest.mark.parametrize(
    "kind",
    [bounds.Name, bounds.Instance, bounds.Text, bounds.Label, bounds.Reason, bounds.LongText, bounds.Word],
)
def test_what_is_refused_is_said_in_words(kind: object) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert("a\x01/", kind)
    said = bounds.plainly(refused.value)
    assert said.startswith("Expected ") and "regex" not in said and "\\" not in said
    with pytest.raises(msgspec.ValidationError, match="regex") as refused:
        msgspec.convert({"x": "1"}, dict[str, Annotated[str, msgspec.Meta(pattern="^[a-z]$")]])
    assert bounds.plainly(refused.value) == str(refused.value), "the types of others are theirs"
