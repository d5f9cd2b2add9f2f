"""The text of a message: our versioned envelope, the record of one in poison, and whatever others put in the queue. Pure.

Ours is plain JSON that begins with ``{"kennel":1,``: any language reads it. The items are there as they are
(``items``), or packed (``z``: zlib, then base64) if that alone makes them fit, or in a blob (``claim``).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from coordinator.bounds import Count, Moment
from coordinator.errors import ConfigurationError, MessageUndecodable

VERSION = 1
MAX_MESSAGE_BYTES = 64 * 1024
MAX_INLINE_UNPACKED_BYTES = 64 * 1024 * 1024
START = '{"kennel":'
_LEFT_OUT = "(left out: the message has no room for it)"
_ROOM_TO_CHANGE_BYTES = 1024
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
Upcaster = Callable[[Any], Any]

# What a message may say of itself: anyone who may write to the queue can write anything.
MAX_VERSION = 1_000_000
MAX_TAG_CHARACTERS = 1024
Index = Annotated[int, Meta(ge=0, le=2**31)]
Tag = Annotated[str, Meta(max_length=MAX_TAG_CHARACTERS)]
Text = Annotated[str, Meta(max_length=MAX_MESSAGE_BYTES)]
Indexes = Annotated[list[Index], Meta(max_length=MAX_MESSAGE_BYTES)]


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a large payload is: blob `name`, `bytes` long as stored."""

    name: Tag
    bytes: Count


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a message (or one item of it) went to poison. `handler` is the name of the function that failed."""

    reason: Text
    error: Text = ""
    trace: Text = ""
    worker: Tag = ""
    attempts: Count = 0
    at: Moment = 0.0
    item: Annotated[int, Meta(ge=-1, le=2**31)] = -1
    handler: Tag = ""


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """What travels with the items.

    `id` is unique per put and survives a repeated put; `schema` is the version of the items' type; `size` is the length of
    the JSON array when unpacked; `left` lists the items still to do (None = all); `unstarted` counts deliveries that were
    given back before a handler saw them, `reported` those that ended with an outcome; of a message whose other deliveries
    ended without a report, `begun` is the item that is being run, `kills` how often each was run when that happened; `raw` is a foreign message carried whole; `claim_kept` says that a
    poison record needs the claim too; `history` are earlier stays in poison.
    """

    kennel: Annotated[int, Meta(ge=1, le=MAX_VERSION)]
    id: Tag = ""
    at: Moment = 0.0
    by: Tag = ""
    schema: Annotated[int, Meta(ge=0, le=MAX_VERSION)] = 0
    traceparent: Tag = ""
    tracestate: Tag = ""
    left: Indexes | None = None
    unstarted: Count = 0
    reported: Count = 0
    begun: Index | None = None
    kills: Annotated[dict[Index, Count], Meta(max_length=MAX_MESSAGE_BYTES)] = {}
    size: Count = 0
    history: Annotated[list[Failure], Meta(max_length=MAX_MESSAGE_BYTES)] = []
    items: Annotated[list[msgspec.Raw], Meta(max_length=MAX_MESSAGE_BYTES)] = []
    z: Text = ""
    claim: Claim | None = None
    claim_kept: bool = False
    raw: Text | None = None


SUFFIX = "-poison"


class PoisonRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that went to poison, whole.

    Attributes:
        queue: Where it came from.
        message_id: The service's id of the message.
        text: The message as it was stored.
        reason: Why it is here.
        failures: All failed attempts, newest last, earlier stays in poison first.
        first_at: When it was put, in seconds since 1970.
        last_at: When it was given up.
        attempts: How often it was delivered.
        left: Index of the items still to do; None for all.
    """

    queue: Tag
    message_id: Tag
    text: Text
    reason: Text
    failures: Annotated[list[Failure], Meta(max_length=1_000_000)]
    first_at: Moment
    last_at: Moment
    attempts: Count
    left: Indexes | None = None


def poison_name(queue: str) -> str:
    """The poison queue's name; a queue name holds at most 63 characters, so long ones lose their end."""
    return queue[: 63 - len(SUFFIX)].rstrip("-") + SUFFIX


class MessageTooNew(MessageUndecodable):
    """A newer program wrote this: it is tried again later, so that a newer worker may take it."""


class _Probe(msgspec.Struct):
    kennel: Annotated[int, Meta(ge=1, le=MAX_VERSION)]


@dataclass(frozen=True)
class Schema:
    """The declared type of a queue's items, its version, and how items of older versions become newer ones.

    `upcasters[n]` turns an item of version n (as plain JSON values) into version n + 1. Without `envelope` each item is a
    message of its own, as other programs read and write it; `base64`: such texts are in base64.
    """

    type: Any = Any
    version: int = 0
    upcasters: Mapping[int, Upcaster] = field(default_factory=dict)
    envelope: bool = True
    base64: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.version <= MAX_VERSION:
            raise ConfigurationError(
                f"the version of a message type is 0 to {MAX_VERSION:,}, got {self.version}"
            )
        if self.version and not self.envelope:
            raise ConfigurationError(
                "version= needs the envelope, which carries it; leave out envelope=False, or put the version into the items"
            )
        if self.base64 and self.envelope:
            raise ConfigurationError(
                "base64=True is for queues with envelope=False; what is in base64 is read without it, except str"
            )
        if missing := [n for n in self.upcasters if not 0 <= n < self.version]:
            raise ConfigurationError(
                f"upcasters from versions {missing} do not lead to version {self.version}"
            )


_encoder = msgspec.json.Encoder()
_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_probe = msgspec.json.Decoder(_Probe).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)


def encode_item(item: Any) -> msgspec.Raw:
    """One item as JSON. Raises `ConfigurationError` if it cannot be represented."""
    try:
        text = _encoder.encode(item)
        # JSON has no NaN and no infinity, and the encoder writes null for them: they would be lost in silence.
        if b"null" in text and _may_be_not_finite(item) and (path := _not_finite(_builtins(item))):
            raise ConfigurationError(
                f"an item of type {type(item).__name__} cannot be put in a queue: {path} is not a finite number, and JSON "
                "has no other; put None or a text in its place"
            )
        return msgspec.Raw(text)
    except (TypeError, msgspec.MsgspecError, RecursionError, OverflowError, UnicodeError) as error:
        raise ConfigurationError(
            f"an item of type {type(item).__name__} cannot be put in a queue: {error}"
        ) from error


def _may_be_not_finite(item: Any) -> bool:
    """Whether a look at each value is due. MessagePack keeps such numbers, and is as fast to write as JSON."""
    try:
        return _NOT_FINITE.search(msgspec.msgpack.encode(item)) is not None
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError, OverflowError):
        return True


def _builtins(item: Any) -> Any:
    return msgspec.to_builtins(item, str_keys=True, enc_hook=_opaque)


def _opaque(value: Any) -> None:
    """JSON within the item: it holds no float of ours."""
    if not isinstance(value, msgspec.Raw):
        raise NotImplementedError


def _not_finite(value: Any, path: str = "$") -> str:
    """Where in the item a number is NaN or infinite; "" if none is."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else path
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        parts = ((f"{path}.{key}", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        parts = ((f"{path}[{index}]", part) for index, part in enumerate(value))
    return next((found for where, part in parts if (found := _not_finite(part, where))), "")


def encode_bare(item: Any, schema: Schema) -> str:
    """The text of a message that holds one item and no envelope. Raises `ConfigurationError` if it cannot be one."""
    if schema.type in (str, bytes) and not isinstance(item, schema.type):
        raise ConfigurationError(
            f"an item of this queue is {schema.type.__name__}, got {type(item).__name__}"
        )
    if isinstance(item, bytes) and schema.type is bytes:
        text = base64.b64encode(item).decode()
    else:
        text = item if schema.type is str else bytes(encode_item(item)).decode()
        if not schema.base64 and (found := _NOT_XML.search(text)):
            raise ConfigurationError(
                f"a message without envelope cannot carry the character {found[0]!r}; use base64=True, or the envelope"
            )
        if schema.base64:
            text = base64.b64encode(text.encode()).decode()
    if not fits(text):
        raise ConfigurationError(
            f"an item of {wire_bytes(text):,} bytes does not fit a message of {MAX_MESSAGE_BYTES:,} bytes without envelope"
        )
    if _looks_like_ours(text):
        raise ConfigurationError('an item without envelope must not look like one: it has a field "kennel"')
    return text


def _looks_like_ours(text: str) -> bool:
    try:
        return decode(text).kennel > 0
    except MessageUndecodable:
        return True


def encode(envelope: Envelope) -> str:
    """The text of a message; characters that XML cannot carry are escaped the JSON way."""
    text = _encoder.encode(envelope).decode()
    if "\ufffe" in text or "\uffff" in text:
        text = text.replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
    return text


def wire_bytes(text: str) -> int:
    """The length on the wire: UTF-8, with the characters that XML escapes."""
    extra = 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))
    return (len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))) + extra


def fits(text: str) -> bool:
    return wire_bytes(text) <= MAX_MESSAGE_BYTES


def pack(items: Sequence[msgspec.Raw]) -> tuple[int, bytes]:
    """The items as one compressed JSON array, and its length before."""
    array = b"[" + b",".join(bytes(item) for item in items) + b"]"
    return len(array), zlib.compress(array, 6 if len(array) < 4 * 1024 * 1024 else 1)


def with_packed(envelope: Envelope, size: int, packed: bytes) -> Envelope:
    return msgspec.structs.replace(envelope, items=[], size=size, z=base64.b64encode(packed).decode())


def with_claim(envelope: Envelope, size: int, packed: bytes, name: str) -> Envelope:
    return msgspec.structs.replace(envelope, items=[], size=size, claim=Claim(name, len(packed)))


def with_short_history(envelope: Envelope) -> Envelope | None:
    """The envelope with as much of its history as a message has room for; None if not even a word about it has.

    The longest traces are left out first, of equal ones the oldest; then the oldest failures. Each says that it is.
    """
    if not envelope.history:
        return envelope if fits(encode(envelope)) else None
    bare = msgspec.structs.replace(envelope, history=[])
    over = wire_bytes(encode(bare)) + _ROOM_TO_CHANGE_BYTES - MAX_MESSAGE_BYTES
    history = list(envelope.history)
    lengths = [_json_bytes(failure) for failure in history]
    over += sum(lengths)
    for index in sorted(range(len(history)), key=lambda index: -len(history[index].trace)):
        if over <= 0 or len(history[index].trace) <= len(_LEFT_OUT):
            break
        history[index] = msgspec.structs.replace(history[index], trace=_LEFT_OUT)
        before, lengths[index] = lengths[index], _json_bytes(history[index])
        over -= before - lengths[index]
    if over > 0:
        over += _json_bytes(_earlier(len(history)))
        gone = 0
        while over > 0 and gone < len(history):
            over -= lengths[gone]
            gone += 1
        if over > 0:
            return None
        history = [_earlier(gone), *history[gone:]]
    return msgspec.structs.replace(envelope, history=history)


def _earlier(number: int) -> Failure:
    return Failure(f"{number} earlier failures are left out: the message has no room for them")


def _json_bytes(failure: Failure) -> int:
    return wire_bytes(_encoder.encode(failure).decode()) + 1


def unpack(packed: bytes, size: int, limit: int) -> list[msgspec.Raw]:
    """The items of a packed array. Never makes more than `limit` or the declared `size` of bytes of it."""
    if not 0 < size <= limit:  # 0 and -1 mean "without a limit" to zlib
        raise MessageUndecodable(f"the payload says it unpacks to {size} bytes; at most {limit} are allowed")
    unpacker = zlib.decompressobj()
    try:
        array = unpacker.decompress(packed, size + 1)
    except zlib.error as error:
        raise MessageUndecodable(f"the packed payload is damaged: {error}") from error
    if len(array) != size or unpacker.unconsumed_tail or not unpacker.eof:
        raise MessageUndecodable(f"the packed payload does not unpack to the {size} bytes it declares")
    try:
        return _decode_array(array)
    except _NOT_JSON as error:
        raise MessageUndecodable(f"the packed payload is not a JSON array: {error}") from error


def decode(text: str) -> Envelope:
    """The envelope of a message; a message without one becomes an envelope (with kennel=0) around it.

    Raises `MessageUndecodable` if it has one that is damaged or newer than this version.
    """
    if text.startswith(START):
        return _ours(text)
    if text.lstrip()[:1] != "{":
        return _within_base64(text)
    return Envelope(kennel=0, raw=text) if _version(text) is None else _ours(text)


def _version(text: str) -> int | None:
    try:
        return _decode_probe(text).kennel
    except _NOT_JSON:
        return None


def _within_base64(text: str) -> Envelope:
    """Azure's own services and older SDKs wrap what they put in base64."""
    plain = unbase64(text)
    if plain is not None and plain.startswith(START):
        return _ours(plain)
    return Envelope(kennel=0, raw=text)


def unbase64(text: str) -> str | None:
    """The text inside base64; None if it isn't that."""
    stripped = text.strip()
    if len(stripped) % 4 or not stripped:
        return None
    try:
        return base64.b64decode(stripped, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _ours(text: str) -> Envelope:
    try:
        envelope = _decode_envelope(text)
        version = envelope.kennel
    except _NOT_JSON as error:
        version = _version(text) or VERSION  # what is out of bounds here may be right for a newer program
        if version == VERSION:
            raise MessageUndecodable(f"the envelope is damaged: {error}") from error
    if version != VERSION:
        raise MessageTooNew(f"the envelope has version {version}; this program knows {VERSION}: update it")
    return envelope


def inline_items(envelope: Envelope) -> list[msgspec.Raw]:
    """The items of an envelope that carries them itself."""
    if not envelope.z:
        return envelope.items
    try:
        packed = base64.b64decode(envelope.z, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MessageUndecodable(f"the packed payload is not base64: {error}") from error
    return unpack(packed, envelope.size, MAX_INLINE_UNPACKED_BYTES)


class ItemDecoder:
    """Turns items into the declared type; errors name the path of the fault."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._decode = msgspec.json.Decoder(schema.type).decode

    def __call__(self, raw: bytes | msgspec.Raw, version: int) -> Any:
        schema = self._schema
        if version > schema.version:
            raise MessageTooNew(
                f"the item has version {version} of its type; this program knows {schema.version}: update it"
            )
        try:
            if version == schema.version:
                return self._decode(raw)
            value = _decode_any(raw)
            for step in range(version, schema.version):
                if step in schema.upcasters:
                    value = schema.upcasters[step](value)
            return msgspec.convert(value, schema.type)
        except _NOT_JSON as error:
            raise MessageUndecodable(f"the item does not match the declared type: {error}") from error
        except MessageUndecodable:
            raise
        except Exception as error:  # an upcaster is the user's code
            raise MessageUndecodable(
                f"an upcaster failed on version {version}: {type(error).__name__}: {error}"
            ) from error

    def foreign(self, text: str) -> Any:
        """An item that came without an envelope: JSON, or JSON in base64, or for str and bytes the text itself."""
        schema = self._schema
        if schema.base64 and schema.type is not bytes and (plain := unbase64(text)) is not None:
            text = plain
        if not schema.envelope and schema.type is str:
            return text
        if not schema.envelope and schema.type is bytes:
            return _bytes_of(text)
        try:
            return self._decode(text)
        except _NOT_JSON as error:
            first = error
        plain = unbase64(text)
        if plain is not None and self._schema.type is not str:
            try:
                return self._decode(plain)
            except _NOT_JSON:
                pass
        if self._schema.type is str:
            return text
        if self._schema.type is bytes:
            return _bytes_of(text)
        raise MessageUndecodable(f"the message does not match the declared type: {first}") from first


def _bytes_of(text: str) -> bytes:
    """What is in base64, or else the text itself."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text.encode(errors="surrogateescape")
