import contextlib
import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import ProtocolViolation
from coordinator.realtime import protocol
from coordinator.realtime.bus import Notification

HELLO = protocol.Hello(
    version=1,
    worker="w-1",
    instance="i",
    host="h",
    pid=1,
    started_at=1.0,
    software="s",
    prefix="kennel-",
    state=protocol.WorkerState(
        gates=(protocol.GateStatus("start", waiting=True),), requests={"queue.GetMessages": 3}
    ),
)


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        protocol.State(HELLO.state),
        protocol.Receipt("g", 2, "push", 0.1, 5.0),
        protocol.State(protocol.WorkerState(), same=("gates",), follows=("gate:a",)),
        protocol.Announce(Notification("queue:a")),
    ],
)
def test_what_a_worker_sends_arrives_unchanged(message):
    assert protocol.decode_from_worker(protocol.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        protocol.Welcome(1, 1.0, 2.0),
        protocol.Pace(10.0),
        protocol.Hinted(Notification("gate:a", epoch=3)),
        protocol.Command("drain", "1", by="olga"),
    ],
)
def test_what_the_hub_sends_arrives_unchanged(message):
    assert protocol.decode_from_hub(protocol.encode(message)) == message


STATES = st.builds(
    protocol.WorkerState,
    mode=st.sampled_from(["running", "draining"]),
    gates=st.sampled_from([(), (protocol.GateStatus("a"),), (protocol.GateStatus("a", epoch=1),)]),
    requests=st.sampled_from([{}, {"get": 1}, {"get": 2}]),
    cpu_seconds=st.sampled_from([0.0, 1.5]),
    memory_bytes=st.sampled_from([0, 7]),
)


@given(st.lists(STATES, min_size=1))
def test_states_sent_as_changes_arrive_whole(states):
    sent = arrived = protocol.WorkerState()
    for state in states:
        frame = protocol.decode_from_worker(protocol.encode(protocol.changes(sent, state)))
        assert isinstance(frame, protocol.State)
        arrived = protocol.whole(arrived, frame)
        sent = state
        assert arrived == state


def test_a_state_that_builds_on_a_field_that_does_not_exist_is_refused():
    with pytest.raises(ProtocolViolation, match="invented"):
        protocol.whole(HELLO.state, protocol.State(HELLO.state, same=("invented",)))


def test_a_field_of_a_newer_version_is_ignored():
    newer = msgspec.json.decode(protocol.encode(HELLO)) | {"invented_later": 1}
    assert protocol.decode_from_worker(msgspec.json.encode(newer)) == HELLO


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("", "not a known message"),
        ('{"type":"surprise"}', "surprise"),
        ('{"type":"receipt","gate":1}', r"\$.gate"),
        (b"\xff\xfe", "not a known message"),
        ("[" * 5_000, "not a known message"),
        ('"' + "x" * protocol.MAX_FRAME_BYTES + '"', "at most"),
    ],
)
def test_a_malformed_frame_is_refused_with_the_reason(frame, reason):
    with pytest.raises(ProtocolViolation, match=reason):
        protocol.decode_from_worker(frame)


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_no_frame_does_anything_but_decode_or_be_refused(frame):
    with contextlib.suppress(ProtocolViolation):
        protocol.decode_from_worker(frame)


def test_a_new_verb_or_mode_comes_with_a_new_version():
    # An end of an older version must not be sent a value that it does not know: see "Versions" in docs/hub.md.
    assert protocol.VERSION == 2
    assert typing.get_args(typing.get_type_hints(protocol.Command)["verb"]) == (
        "drain",
        "resume",
        "stop",
        "step_down",
    )
    assert typing.get_args(typing.get_type_hints(protocol.WorkerState)["mode"]) == (
        "starting",
        "running",
        "draining",
        "stopping",
    )
