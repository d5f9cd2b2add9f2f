"""Writes docs/wire-format.schema.json, the JSON Schema of everything that other programs may read or write in the account.

    .venv/bin/python scripts/wire_schema.py

Messages and gates come from the structs that Kennel decodes with. Counters, leases and claims are text and metadata, so
their shapes are described here; a test compares them with what Kennel stores.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from coordinator.bounds import Moment, Number
from coordinator.gates.state import GateState
from coordinator.queues.envelope import Envelope, PoisonRecord

TARGET = Path(__file__).resolve().parent.parent / "docs" / "wire-format.schema.json"


def _json_of(name: str) -> dict[str, Any]:
    return {"contentMediaType": "application/json", "contentSchema": {"$ref": f"#/$defs/{name}"}}


Digits = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]
Decimal = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?$")]
Quoted = Annotated[str, Meta(description="percent-encoded UTF-8", pattern="^[!-~]*$")]


class GrantEntry(msgspec.Struct, array_like=True):
    """One grant: the numbers first, first + step, … up to last. `owner` is an index into the owners; `used` is 1 if all were issued."""

    first: Number
    last: Number
    step: Annotated[int, Meta(ge=1)]
    nonce: str
    owner: Annotated[int, Meta(ge=0)]
    granted_at: Moment
    used: Annotated[int, Meta(ge=0, le=1)] = 0


class OwnerEntry(msgspec.Struct, array_like=True):
    """One start of one process."""

    id: str
    host: str
    pid: int
    started_at: int
    software: str


class JumpEntry(msgspec.Struct, array_like=True):
    """Numbers that another program passed over or issued."""

    first: Number
    last: Number


class CounterMetadata(msgspec.Struct):
    """Metadata of the blob `{prefix}sequences/{name}`, whose content is the next free number as decimal text and nothing else.

    `kennel_next` repeats the content; `kennel_start` is the first number of the sequence; `kennel_tails` are keys of
    returned ranges in the ledger; `kennel_since` is where the ledger begins; `kennel_window` is a pace.
    """

    kennel_next: Digits
    kennel_grants: Annotated[str, Meta(extra_json_schema=_json_of("Grants"))]
    kennel_owners: Annotated[str, Meta(extra_json_schema=_json_of("Owners"))]
    kennel_start: Digits = ""
    kennel_jumps: Annotated[str, Meta(extra_json_schema=_json_of("Jumps"))] = ""
    kennel_tails: str = ""
    kennel_since: Digits = ""
    kennel_window: str = ""


class LeaseMetadata(msgspec.Struct):
    """Metadata of the empty, leased blob `{prefix}leases/{name}`: the newest leader, whether or not its lease still runs.

    `epoch` is the fencing token. `since` is when the term began, `lease` and `renew` are its lease and its interval of
    renewal in seconds.
    """

    holder: Quoted
    epoch: Digits
    since: Decimal
    nonce: str
    lease: Decimal
    renew: Decimal


class SuccessorMetadata(msgspec.Struct):
    """Metadata of the empty blob `{prefix}leases/{name}.standby`: who asks to be next, and the lease id to hand over to."""

    standby: Quoted
    lease: Annotated[str, Meta(extra_json_schema={"format": "uuid"})]


class ClaimMetadata(msgspec.Struct):
    """Metadata of the blob `{prefix}claims/{queue}/{claim.name}`, whose content is zlib data of a JSON array of items.

    `expires` is when its message expires, in seconds since 1970; 0: never.
    """

    expires: Digits


STRUCTS = (
    Envelope, PoisonRecord, GateState, CounterMetadata, LeaseMetadata, SuccessorMetadata, ClaimMetadata,
)  # fmt: skip
LISTS = {"Grants": list[GrantEntry], "Owners": list[OwnerEntry], "Jumps": list[JumpEntry]}


def schema() -> dict[str, Any]:
    """All of them, by name."""
    references, defs = msgspec.json.schema_components([*STRUCTS, *LISTS.values()])
    lists = dict(zip(LISTS, references[len(STRUCTS) :], strict=False))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Kennel's wire format, version 1",
        "$defs": _portable({**defs, **lists}),
    }


def _portable(value: Any) -> Any:
    """Patterns as every language has them, descriptions as one paragraph."""
    if isinstance(value, dict):
        return {key: _portable(part) for key, part in value.items() if key != "required" or part}
    if isinstance(value, list):
        return [_portable(part) for part in value]
    if isinstance(value, str):
        return " ".join(value.replace(r"\A", "^").replace(r"\Z", "$").split())
    return value


def text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
