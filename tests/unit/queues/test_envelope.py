"""The text of a message, rule by rule."""

import base64
import json
import random
import re
import zlib

import msgspec
import pytest

from coordinator.errors import ConfigurationError, MessageUndecodable
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import (
    MAX_MESSAGE_BYTES,
    Claim,
    Envelope,
    Failure,
    ItemDecoder,
    MessageTooNew,
    Schema,
)
from coordinator.queues.settling import RetryPolicy

ITEMS = [msgspec.Raw(b'"one"'), msgspec.Raw(b"2"), msgspec.Raw(b'{"three":3}')]
HEAD = Envelope(kennel=1, id="m-1", at=1.5, by="w-1", items=ITEMS)


class Order(msgspec.Struct):
    item: str
    count: int = 1


def refused(kind, text):
    return pytest.raises(kind, match=f"^{re.escape(text)}")


# --- packing ------------------------------------------------------------------------------------------------------------


def test_packed_items_are_one_compressed_json_array():
    size, packed = wire.pack(ITEMS)
    assert zlib.decompress(packed) == b'["one",2,{"three":3}]'
    assert size == 21
    assert wire.unpack(packed, size, size) == ITEMS


def test_what_is_packed_replaces_the_items():
    packed = wire.with_packed(HEAD, 21, b"abc")
    assert packed == msgspec.structs.replace(HEAD, items=[], size=21, z="YWJj")
    claimed = wire.with_claim(HEAD, 21, b"abc", "f" * 32)
    assert claimed == msgspec.structs.replace(HEAD, items=[], size=21, claim=Claim("f" * 32, 3))


def test_items_are_found_where_the_envelope_carries_them():
    size, packed = wire.pack(ITEMS)
    assert wire.inline_items(HEAD) == ITEMS
    assert wire.inline_items(wire.with_packed(HEAD, size, packed)) == ITEMS
    with refused(MessageUndecodable, "the packed payload is not base64: "):
        wire.inline_items(msgspec.structs.replace(HEAD, z="a b=", size=9))
    with refused(MessageUndecodable, "the packed payload is not base64: "):
        wire.inline_items(msgspec.structs.replace(HEAD, z="aGVs----", size=9))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 0}, "the payload says it unpacks to 0 bytes; at most 100 are allowed"),
        ({"size": -1}, "the payload says it unpacks to -1 bytes; at most 100 are allowed"),
        ({"size": 101}, "the payload says it unpacks to 101 bytes; at most 100 are allowed"),
        ({"packed": b"nonsense"}, "the packed payload is damaged: "),
        ({"size": 20}, "the packed payload does not unpack to the 20 bytes it declares"),
        ({"size": 22}, "the packed payload does not unpack to the 22 bytes it declares"),
        ({"cut": 1}, "the packed payload does not unpack to the 21 bytes it declares"),
        ({"packed": zlib.compress(b"x" * 21)}, "the packed payload is not a JSON array: "),
        ({"packed": zlib.compress(b"7"), "size": 1}, "the packed payload is not a JSON array: "),
    ],
)
def test_a_payload_that_is_not_what_it_declares_is_refused(change, words):
    size, packed = wire.pack(ITEMS)
    packed = change.get("packed", packed)[: -change["cut"] if "cut" in change else None]
    with refused(MessageUndecodable, words):
        wire.unpack(packed, change.get("size", size), 100)


def test_the_whole_limit_may_be_used():
    size, packed = wire.pack(ITEMS)
    assert wire.unpack(packed, size, size) == ITEMS
    with refused(MessageUndecodable, "the payload says"):
        wire.unpack(packed, size, size - 1)


# --- history ------------------------------------------------------------------------------------------------------------

LEFT_OUT = "(left out: the message has no room for it)"
FREE_BYTES = 1024


def failures(**traces):
    return [Failure(reason, trace="t" * length) for reason, length in traces.items()]


def with_room(room, history):
    """An envelope that has `room` bytes left beside its history and the bytes that are kept free; below 0 it lacks some."""
    bare = Envelope(kennel=1, z="z")
    used = wire.wire_bytes(wire.encode(bare)) + FREE_BYTES + sum(map(wire._json_bytes, history))
    return msgspec.structs.replace(bare, z="z" * (MAX_MESSAGE_BYTES - used - room + 1), history=history)


def shortened(room, history):
    """The failures that stay, each with the length of its trace."""
    envelope = with_room(room, history)
    short = wire.with_short_history(envelope)
    if short is None:
        return None
    assert msgspec.structs.replace(short, history=[]) == msgspec.structs.replace(envelope, history=[])
    assert wire.fits(wire.encode(short))
    return [
        (failure.reason, "left out" if failure.trace == LEFT_OUT else len(failure.trace)) for failure in short.history
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("failure", "size"),
    [
        (Failure("ab"), len('{"reason":"ab"},')),
        (Failure("ä&"), len('{"reason":""},') + 2 + 5),
        (Failure("", trace="x"), len('{"reason":"","trace":"x"},')),
    ],
)
def test_a_failure_takes_its_json_and_a_comma(failure, size):
    assert wire._json_bytes(failure) == size


def test_an_envelope_without_history_fits_or_does_not():
    full = Envelope(kennel=1, z="z" * (MAX_MESSAGE_BYTES - len('{"kennel":1,"z":""}')))
    assert wire.with_short_history(full) is full
    assert wire.with_short_history(msgspec.structs.replace(full, z=full.z + "z")) is None


@pytest.mark.parametrize(
    ("room", "left"),
    [
        (1, [("a", 1000), ("b", 3000), ("c", 1000)]),
        (0, [("a", 1000), ("b", 3000), ("c", 1000)]),
        (-1, [("a", 1000), ("b", "left out"), ("c", 1000)]),
        (len(LEFT_OUT) - 3000, [("a", 1000), ("b", "left out"), ("c", 1000)]),
        (len(LEFT_OUT) - 3001, [("a", "left out"), ("b", "left out"), ("c", 1000)]),
        (2 * len(LEFT_OUT) - 4000, [("a", "left out"), ("b", "left out"), ("c", 1000)]),
        (2 * len(LEFT_OUT) - 4001, [("a", "left out"), ("b", "left out"), ("c", "left out")]),
        (3 * len(LEFT_OUT) - 5000, [("a", "left out"), ("b", "left out"), ("c", "left out")]),
    ],
)
def test_the_longest_traces_are_left_out_first_and_of_equal_ones_the_oldest(room, left):
    assert shortened(room, failures(a=1000, b=3000, c=1000)) == left


def earlier(number):
    return (f"{number} earlier failures are left out: the message has no room for them", 0)


A, B, C = "a" * 200, "b" * 300, "c" * 400
EARLIER = len('{"reason":""},') + len(earlier(3)[0])


@pytest.mark.parametrize(
    ("room", "left"),
    [
        (0, [(A, 0), (B, 0), (C, 0)]),
        (-1, [earlier(1), (B, 0), (C, 0)]),
        (EARLIER - 214, [earlier(1), (B, 0), (C, 0)]),
        (EARLIER - 215, [earlier(2), (C, 0)]),
        (EARLIER - 214 - 314, [earlier(2), (C, 0)]),
        (EARLIER - 214 - 315, [earlier(3)]),
        (EARLIER - 214 - 314 - 414, [earlier(3)]),
        (EARLIER - 214 - 314 - 415, None),
    ],
)
def test_then_the_oldest_failures_are_left_out_and_counted(room, left):
    assert shortened(room, [Failure(A), Failure(B), Failure(C)]) == left


def test_a_trace_no_longer_than_the_words_for_it_stays():
    short, long = "t" * len(LEFT_OUT), "t" * (len(LEFT_OUT) + 1)
    assert shortened(-1, [Failure(A), Failure("b", trace=short)]) == [earlier(1), ("b", len(short))]
    assert shortened(-1, [Failure(A), Failure("b", trace=long)]) == [(A, 0), ("b", "left out")]


# --- the text -----------------------------------------------------------------------------------------------------------


def test_an_envelope_begins_with_its_version_and_is_read_back():
    text = wire.encode(HEAD)
    assert text.startswith('{"kennel":1,')
    assert wire.decode(text) == HEAD


def test_characters_that_xml_cannot_carry_are_escaped():
    text = wire.encode(Envelope(kennel=1, by="a\ufffeb\uffffc"))
    assert text == '{"kennel":1,"by":"a\\ufffeb\\uffffc"}'
    assert wire.encode(Envelope(kennel=1, by="\ufffe")) == '{"kennel":1,"by":"\\ufffe"}'
    assert wire.encode(Envelope(kennel=1, by="\uffff")) == '{"kennel":1,"by":"\\uffff"}'
    assert wire.decode(text).by == "a\ufffeb\uffffc"


@pytest.mark.parametrize(
    ("text", "size"), [("", 0), ("abc", 3), ("a&b", 7), ("<>", 8), ("&&<", 14), ("ü", 2), ("ü&", 7), ("\ud800", 3)]
)  # fmt: skip
def test_the_length_on_the_wire_counts_what_xml_escapes(text, size):
    assert wire.wire_bytes(text) == size


def test_a_message_may_fill_its_room():
    assert wire.fits("x" * MAX_MESSAGE_BYTES)
    assert not wire.fits("x" * (MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize(
    "text", ["hello", "17", '"text"', "[1]", '{"item":"a"}', ' {"item":1}', ' {"kennel":"x"}', "", "aGVsbG8=", "   "]
)  # fmt: skip
def test_a_message_of_others_is_carried_whole(text):
    assert wire.decode(text) == Envelope(kennel=0, raw=text)


@pytest.mark.parametrize(
    "text", [' {"kennel":1,"id":"m-1"}', '{"id":"m-1","kennel":1}', '\n{ "kennel": 1, "id": "m-1"}']
)
def test_our_envelope_is_recognised_however_it_is_written(text):
    assert wire.decode(text) == Envelope(kennel=1, id="m-1")


def test_our_envelope_is_recognised_within_base64():
    text = wire.encode(HEAD)
    assert wire.decode(base64.b64encode(text.encode()).decode()) == HEAD
    spaced = base64.b64encode(f" {text}".encode()).decode()
    assert wire.decode(spaced) == Envelope(kennel=0, raw=spaced)


@pytest.mark.parametrize("version", [2, 17])
def test_a_newer_envelope_waits_for_a_newer_worker(version):
    words = f"the envelope has version {version}; this program knows 1: update it"
    with refused(MessageTooNew, words):
        wire.decode(f'{{"kennel":{version},"id":"m-1"}}')
    with refused(MessageTooNew, words):
        wire.decode(f'{{"kennel":{version},"id":[1]}}')


@pytest.mark.parametrize("text", ['{"kennel":1,"id":7}', '{"kennel":1', '{"kennel":0}', '{"kennel":"1"}'])
def test_a_damaged_envelope_is_refused(text):
    with refused(MessageUndecodable, "the envelope is damaged: ") as caught:
        wire.decode(text)
    assert not isinstance(caught.value, MessageTooNew)


@pytest.mark.parametrize(
    ("text", "plain"),
    [("aGVsbG8=", "hello"), (" aGVsbG8=\n", "hello"), ("aGVsbG8", None), ("", None), ("  ", None), ("a-b=", None), ("aGVs----", None), ("////", None)],
)  # fmt: skip
def test_base64_is_told_from_other_text(text, plain):
    assert wire.unbase64(text) == plain


# --- items --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [None, True, 1, "x", [1, None], {"a": [None]}, Order("a")])
def test_an_item_is_plain_json(item):
    assert json.loads(bytes(wire.encode_item(item))) == msgspec.to_builtins(item)


def test_an_item_may_be_json_already():
    assert wire.encode_item({"a": msgspec.Raw(b"null")}) == msgspec.Raw(b'{"a":null}')


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (float("nan"), "an item of type float cannot be put in a queue: $ is not a finite number"),
        ([1.0, float("inf")], "an item of type list cannot be put in a queue: $[1] is not a finite number"),
        ({"a": (0, float("-inf"))}, "an item of type dict cannot be put in a queue: $.a[1] is not a finite number"),
        ({"a": 2**70, "b": float("nan")}, "an item of type dict cannot be put in a queue: $.b is not a finite number, and JSON has no other; put None or a text in its place"),
        ({1: [0.5, {"x": (float("nan"),)}]}, "an item of type dict cannot be put in a queue: $.1[1].x[0] is not a finite number"),
        ([msgspec.Raw(b"null"), float("nan")], "an item of type list cannot be put in a queue: $[1] is not a finite number"),
        (object(), "an item of type object cannot be put in a queue: "),
        ({1, object()}, "an item of type set cannot be put in a queue: "),
        ("\ud800", "an item of type str cannot be put in a queue: "),
    ],
)  # fmt: skip
def test_an_item_that_is_no_json_is_refused_and_named(item, words):
    with refused(ConfigurationError, words):
        wire.encode_item(item)


def test_a_schema_must_lead_to_its_version():
    Schema(version=0)
    Schema(version=wire.MAX_VERSION, upcasters={0: str, wire.MAX_VERSION - 1: str})
    for version in (-1, wire.MAX_VERSION + 1):
        with refused(ConfigurationError, f"the version of a message type is 0 to 1,000,000, got {version}"):
            Schema(version=version)
    with refused(ConfigurationError, "upcasters from versions [-1, 2] do not lead to version 2"):
        Schema(version=2, upcasters={-1: str, 1: str, 2: str})


UP = Schema(
    type=Order,
    version=3,
    upcasters={0: lambda old: {"item": old}, 2: lambda old: {**old, "count": old.get("count", 1) * 10}},
)


@pytest.mark.parametrize(
    ("raw", "version", "item"),
    [
        (b'{"item":"a","count":2}', 3, Order("a", 2)),
        (b'{"item":"a","count":2}', 2, Order("a", 20)),
        (b'{"item":"a"}', 1, Order("a", 10)),
        (b'"a"', 0, Order("a", 10)),
    ],
)
def test_older_items_become_newer_ones_step_by_step(raw, version, item):
    assert ItemDecoder(UP)(raw, version) == item


@pytest.mark.parametrize(
    ("raw", "version", "kind", "words"),
    [
        (b"{}", 4, MessageTooNew, "the item has version 4 of its type; this program knows 3: update it"),
        (b"{}", 3, MessageUndecodable, "the item does not match the declared type: Object missing required field `item`"),
        (b"{", 3, MessageUndecodable, "the item does not match the declared type: "),
        (b"{", 0, MessageUndecodable, "the item does not match the declared type: "),
        (b"[]", 1, MessageUndecodable, "an upcaster failed on version 1: TypeError: "),
        (b'{"item":1}', 1, MessageUndecodable, "the item does not match the declared type: Expected `str`, got `int` - at `$.item`"),
    ],
)  # fmt: skip
def test_an_item_that_cannot_be_decoded_says_why(raw, version, kind, words):
    with refused(kind, words):
        ItemDecoder(UP)(raw, version)


def test_an_upcaster_may_refuse_by_itself():
    def refuse(old):
        raise MessageUndecodable("not mine")

    with refused(MessageUndecodable, "not mine"):
        ItemDecoder(Schema(version=1, upcasters={0: refuse}))(b"1", 0)


def b64(text):
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("kind", "text", "item"),
    [
        (Order, '{"item":"a"}', Order("a")),
        (Order, b64('{"item":"a"}'), Order("a")),
        (int, "17", 17),
        (int, b64("17"), 17),
        (str, '"a"', "a"),
        (str, "a", "a"),
        (str, b64('"a"'), b64('"a"')),
        (bytes, "aGVsbG8=", b"hello"),
        (bytes, "no base64!", b"no base64!"),
        (bytes, "h\xe9", "h\xe9".encode()),
        (bytes, "a\udc80", b"a\x80"),
    ],
)
def test_an_item_without_an_envelope_is_json_or_base64_or_the_text_itself(kind, text, item):
    assert ItemDecoder(Schema(type=kind)).foreign(text) == item


@pytest.mark.parametrize("text", ["a", "[]", b64("[]")])
def test_an_item_without_an_envelope_that_is_none_of_these_is_refused(text):
    with refused(MessageUndecodable, "the message does not match the declared type: "):
        ItemDecoder(Schema(type=Order)).foreign(text)
    with refused(
        MessageUndecodable, "the message does not match the declared type: Expected `object`, got `array`"
    ):
        ItemDecoder(Schema(type=Order)).foreign("[]")


# --- without an envelope ------------------------------------------------------------------------------------------------


def bare(kind, *, base64=False):
    return Schema(type=kind, envelope=False, base64=base64)


@pytest.mark.parametrize(
    ("schema", "item", "text"),
    [
        (bare(Order), Order("ü<"), '{"item":"ü<","count":1}'),
        (bare(Order, base64=True), Order("a"), b64('{"item":"a","count":1}')),
        (bare(int), 17, "17"),
        (bare(str), "17", "17"),
        (bare(str), '"a"', '"a"'),
        (bare(str), b64("a"), b64("a")),
        (bare(str, base64=True), b64("a"), b64(b64("a"))),
        (bare(str, base64=True), "\x00\uffff", b64("\x00\uffff")),
        (bare(bytes), b"\xff", "/w=="),
        (bare(bytes, base64=True), b"/w==", "L3c9PQ=="),
    ],
)
def test_an_item_without_an_envelope_is_its_message_and_comes_back_as_it_was(schema, item, text):
    assert wire.encode_bare(item, schema) == text
    assert ItemDecoder(schema).foreign(text) == item


@pytest.mark.parametrize(
    ("schema", "text", "item"),
    [
        (bare(str, base64=True), "no base64!", "no base64!"),
        (bare(bytes), "no base64!", b"no base64!"),
        (bare(Order), b64('{"item":"a"}'), Order("a")),
        (bare(Order, base64=True), '{"item":"a"}', Order("a")),
    ],
)
def test_what_others_put_into_such_a_queue_is_read_in_either_form(schema, text, item):
    assert ItemDecoder(schema).foreign(text) == item


@pytest.mark.parametrize(
    ("schema", "item", "words"),
    [
        (bare(str), 17, "an item of this queue is str, got int"),
        (bare(bytes), "a", "an item of this queue is bytes, got str"),
        (bare(str), "a\x00b", r"a message without envelope cannot carry the character '\x00'; use base64=True"),
        (bare(str), "x" * 65_537, "an item of 65,537 bytes does not fit a message of 65,536 bytes without envelope"),
        (bare(str, base64=True), "x" * 49_153, "an item of 65,540 bytes does not fit"),
        (bare(str), '{"kennel": "a dog"}', 'an item without envelope must not look like one: it has a field "kennel"'),
        (bare(dict), {"kennel": 1}, 'an item without envelope must not look like one: it has a field "kennel"'),
    ],
)  # fmt: skip
def test_what_cannot_be_a_message_without_an_envelope_is_refused(schema, item, words):
    with refused(ConfigurationError, words):
        wire.encode_bare(item, schema)


def test_the_largest_items_without_an_envelope_fit():
    assert len(wire.encode_bare("x" * 65_536, bare(str))) == 65_536
    assert len(wire.encode_bare("x" * 49_152, bare(str, base64=True))) == 65_536


def test_options_that_need_the_envelope_or_its_absence_are_refused():
    with refused(ConfigurationError, "version= needs the envelope, which carries it"):
        Schema(version=1, envelope=False)
    with refused(ConfigurationError, "base64=True is for queues with envelope=False"):
        Schema(base64=True)


# --- trying again -------------------------------------------------------------------------------------------------------


class Bounds:
    """A generator of chances that shows between which bounds one was drawn."""

    def uniform(self, low, high):
        return low, high


@pytest.mark.parametrize(
    ("attempt", "bounds"), [(1, (1, 2)), (2, (2, 4)), (3, (4, 8)), (4, (5, 10)), (60, (5, 10)), (10_000, (5, 10))]
)  # fmt: skip
def test_pauses_between_tries_double_up_to_the_cap(attempt, bounds):
    assert RetryPolicy(base_seconds=2, cap_seconds=10).delay(attempt, Bounds()) == bounds


def test_pauses_never_overflow():
    policy = RetryPolicy(base_seconds=1e-9, cap_seconds=604_800)
    assert policy.delay(10**6, Bounds()) == policy.delay(41, Bounds()) == (1e-9 * 2**39, 1e-9 * 2**40)
    assert 0.5 <= RetryPolicy().delay(1, random.Random(7)) <= 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attempts": 0}, "attempts must be at least 1, got 0"),
        ({"base_seconds": -1}, "retries need 0 <= base_seconds <= cap_seconds <= 604,800 (7 days)"),
        ({"base_seconds": 3, "cap_seconds": 2}, "retries need 0 <= base_seconds <= cap_seconds <= 604,800 (7 days)"),
        ({"cap_seconds": 604_801}, "retries need 0 <= base_seconds <= cap_seconds <= 604,800 (7 days)"),
    ],
)  # fmt: skip
def test_retries_out_of_bounds_are_refused(options, words):
    with refused(ConfigurationError, words):
        RetryPolicy(**options)


def test_retries_within_bounds_are_not():
    RetryPolicy(attempts=1, base_seconds=0, cap_seconds=0)
    RetryPolicy(base_seconds=604_800, cap_seconds=604_800)
