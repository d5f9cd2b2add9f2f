"""What a message says of itself is bounded, and what JSON cannot carry is refused before it is put."""

from __future__ import annotations

import base64
import enum
import json
import math
import random
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import ConfigurationError, MessageUndecodable
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import MessageTooNew
from coordinator.testing.queues import MemoryClaimStore, MemoryQueueTransport, memory_queue
from tests.unit.queues.harness import ListenerHarness

PACKED = zlib.compress(b"[" + b"1," * 2_000_000 + b"1]")


class Measurement(msgspec.Struct):
    value: float
    work_item: str | None = None
    results: list[msgspec.Raw] = []


class Ratio(enum.Enum):
    UNKNOWN = math.nan


@pytest.mark.parametrize(
    ("item", "path"),
    [
        (math.nan, "$"),
        (math.inf, "$"),
        (-math.inf, "$"),
        ({"a": [1.0, None, math.nan]}, "$.a[2]"),
        (Measurement(math.inf), "$.value"),
        ([Measurement(1.0, results=[msgspec.Raw(b"null")]), (math.nan,)], "$[1][0]"),
        (Ratio.UNKNOWN, "$"),
    ],
)
async def test_a_number_that_json_has_not_is_refused_and_named(
    harness: ListenerHarness, item: Any, path: str
) -> None:
    with pytest.raises(ConfigurationError, match="finite") as caught:
        await harness.queue.put(1, item)
    assert f": {path} is not" in str(caught.value)
    assert await harness.queue.depth() == 0


@pytest.mark.parametrize(
    "item", [None, [None, 1.5], {"a": None}, Measurement(1.0, None, [msgspec.Raw(b"null")]), "null", "nan"]
)
async def test_null_itself_can_be_put(harness: ListenerHarness, item: Any) -> None:
    assert len(await harness.queue.put(item)) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@given(json_values)
def test_what_is_put_is_what_was_given_or_it_is_refused(item: Any) -> None:
    try:
        raw = wire.encode_item(item)
    except ConfigurationError:
        with pytest.raises((ValueError, UnicodeError)):
            json.dumps(item, allow_nan=False, ensure_ascii=False).encode()
    else:
        assert msgspec.json.decode(raw) == item


@pytest.mark.parametrize(
    "options", [{"ttl": math.nan}, {"ttl": math.inf}, {"delay": math.nan}, {"visibility": math.inf}]
)
async def test_times_out_of_bounds_are_refused_before_anything_is_put(
    harness: ListenerHarness, options: dict[str, float]
) -> None:
    with pytest.raises(ConfigurationError):
        await harness.queue.put(1, **options)
    with pytest.raises(ConfigurationError):
        await harness.queue.put_text(
            "1", **{"delay" if name == "visibility" else name: value for name, value in options.items()}
        )


async def test_a_trace_context_that_no_listener_would_read_is_refused(harness: ListenerHarness) -> None:
    with pytest.raises(ConfigurationError, match="tracestate"):
        await harness.queue.put(1, tracestate="x" * 2000)


BEYOND: dict[str, Any] = {
    "at": [1e300, -1.0, "now"],
    "size": [-1, -2, 10**400],
    "schema": [-1, 10**9],
    "unstarted": [-1, 10**30],
    "left": [[-1], [10**12]],
    "id": ["x" * 5000],
    "by": ["x" * 5000],
    "traceparent": ["x" * 5000],
    "claim": [{"name": "../other", "bytes": 1}, {"name": "0" * 32, "bytes": -1}],
    "history": [
        [{"reason": "", "at": 1e300}],
        [{"reason": "", "attempts": -1}],
        [{"reason": "", "item": -2}],
    ],
    "kennel": [0, -1, 10**30],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BEYOND.items() for value in values]
)
async def test_an_envelope_out_of_bounds_goes_to_poison_whole_with_the_reason(
    harness: ListenerHarness, field: str, value: Any
) -> None:
    text = json.dumps({"kennel": 1, "id": "x", "items": [1], field: value}, separators=(",", ":"))
    await harness.queue.put_text(text)
    (peeked,) = await harness.queue.peek()
    assert peeked.items == ()
    assert peeked.problem
    async with harness.listening():
        await harness.clock.advance(3)
    (record,) = await harness.poisoned()
    assert record.text == text
    assert field in record.reason
    assert harness.got == []


@pytest.mark.parametrize("size", [-2, -1, 0])
def test_a_payload_is_never_unpacked_beyond_what_it_declares(size: int) -> None:
    with pytest.raises(MessageUndecodable, match="unpacks to"):
        wire.unpack(PACKED, size, 1_000_000)
    text = json.dumps(
        {"kennel": 1, "size": size, "z": base64.b64encode(PACKED).decode()}, separators=(",", ":")
    )
    with pytest.raises(MessageUndecodable):
        wire.inline_items(wire.decode(text))


def test_what_only_a_newer_program_can_read_is_left_to_it() -> None:
    with pytest.raises(MessageTooNew):
        wire.decode('{"kennel":2,"id":"x","items":{"of":"another shape"}}')


async def test_a_message_that_claims_many_unseen_deliveries_is_given_up_after_its_attempts() -> None:
    harness = ListenerHarness()
    await harness.queue.put_text('{"kennel":1,"id":"x","unstarted":1000000,"items":[1]}')

    async def fail(item: int) -> None:
        harness.got.append(item)
        raise ValueError("no")

    async with harness.listening(fail):
        await harness.clock.advance(600)
        assert harness.got == [1] * 5
        assert len(await harness.poisoned()) == 1


async def test_a_poison_record_out_of_bounds_is_shown_as_unreadable_not_as_a_record() -> None:
    transports: dict[str, MemoryQueueTransport] = {}
    queue = memory_queue("work", transports=transports)
    record = {"queue": "work", "message_id": "1", "text": "x", "reason": "r", "failures": [],
              "first_at": 1e300, "last_at": 1.0, "attempts": 1}  # fmt: skip
    await queue.poison.put_text(json.dumps({"kennel": 1, "items": [record]}, separators=(",", ":")))
    (peeked,) = await queue.poison.peek()
    assert (peeked.items, "first_at" in peeked.problem) == ((), True)


async def test_a_payload_that_was_replaced_by_a_larger_one_goes_to_poison_unread(
    harness: ListenerHarness,
) -> None:
    claims = MemoryClaimStore(harness.clock)
    queue = memory_queue("work", clock=harness.clock, transports=harness.transports, claims=claims)
    (kept,) = await queue.put(random.Random(1).randbytes(80_000).hex())
    assert kept.envelope.claim is not None
    await claims.put(kept.envelope.claim.name, bytes(10_000_000), expires_at=0)
    (peeked,) = await queue.peek()
    assert "has 10000000 bytes, more than" in peeked.problem
