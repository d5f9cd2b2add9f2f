"""A page of a table with a row that another program wrote: the row is odd, and the others are read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from coordinator.azure.rest import RestResponse, SignedRest
from coordinator.errors import StorageUnreachable
from coordinator.storage import Storage
from coordinator.tables.azure import AzureTableStore
from coordinator.tables.rows import Key, Row
from coordinator.tables.store import Query

ACCOUNT = "DefaultEndpointsProtocol=https;AccountName=none;AccountKey=bm9uZQ==;EndpointSuffix=example.org"
GOOD = {"PartitionKey": "nl", "RowKey": "good", "odata.etag": "1", "n": 5, "kennel_nonces": "a b"}


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads a page that the service answers with these entities, or these bytes."""

    async def read(*entities: dict[str, Any] | bytes) -> dict[str, Row]:
        content = (
            entities[0] if isinstance(entities[0], bytes) else json.dumps({"value": list(entities)}).encode()
        )

        async def send(*_: Any, **__: Any) -> RestResponse:
            return RestResponse(200, {}, content)

        monkeypatch.setattr(SignedRest, "send", send)
        store = AzureTableStore(Storage.from_connection_string(ACCOUNT), "stock")
        return {row.key.row: row for row in (await store.page(Query(), None)).rows}

    return read


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("Edm.DateTime", "0000-01-01T00:00:00Z"),
        ("Edm.DateTime", "10000-01-01T00:00:00Z"),
        ("Edm.DateTime", 5),
        ("Edm.Guid", "x"),
        ("Edm.Guid", 5),
        ("Edm.Binary", "A"),
        ("Edm.Binary", 5),
        ("Edm.Int64", "x"),
        ("Edm.Int64", "9" * 5000),
        ("Edm.Int64", []),
        ("Edm.Double", "x"),
        ("Edm.Unheard", "x"),
    ],
)
async def test_what_is_no_value_of_its_type_stays_as_it_was_sent(answered: Any, kind: str, text: Any) -> None:
    rows = await answered(GOOD, GOOD | {"RowKey": "odd", "n": text, "n@odata.type": kind})
    assert rows["odd"]["n"] == text
    assert rows["good"] == Row(Key("nl", "good"), {"n": 5}, "1", ("a", "b"))


async def test_values_are_of_their_types(answered: Any) -> None:
    typed = {
        "when": ("Edm.DateTime", "9999-12-31T23:59:59.9999999Z", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
        "wide": ("Edm.Int64", str(2**62), 2**62),
        "which": ("Edm.Guid", "00000000-0000-0000-0000-000000000001", UUID(int=1)),
        "raw": ("Edm.Binary", "AAE=", b"\x00\x01"),
        "most": ("Edm.Double", "-Infinity", float("-inf")),
    }  # fmt: skip
    entity: dict[str, Any] = dict(GOOD)
    for name, (kind, text, _) in typed.items():
        entity |= {name: text, f"{name}@odata.type": kind}
    assert (await answered(entity))["good"].values == {"n": 5} | {
        name: each[2] for name, each in typed.items()
    }


@pytest.mark.parametrize("nonces", [5, True, 1.5, []])
async def test_nonces_that_are_no_text_are_none(answered: Any, nonces: Any) -> None:
    rows = await answered(GOOD, GOOD | {"RowKey": "odd", "kennel_nonces": nonces})
    assert rows["odd"].nonces == ()
    assert rows["good"].nonces == ("a", "b")


async def test_half_a_character_becomes_a_mark_that_a_page_can_show(answered: Any) -> None:
    rows = await answered(
        GOOD | {"n": "\U0001f600"}, GOOD | {"PartitionKey": "x\ud800", "RowKey": "odd\udfff", "n": "\udc00"}
    )
    assert rows["good"]["n"] == "\U0001f600"
    assert rows["odd\ufffd"].key.partition == "x\ufffd"
    assert rows["odd\ufffd"]["n"] == "\ufffd"
    raw = b'{"value": [{"PartitionKey": "nl", "RowKey": "raw", "n": "\xed\xa0\x80"}]}'
    assert "\ufffd" in (await answered(raw))["raw"]["n"]


async def test_an_answer_that_holds_no_rows_is_no_answer(answered: Any) -> None:
    for content in (b"{", b"{}", b"[]", b'{"value": [{}]}', b'{"value": [5]}'):
        with pytest.raises(StorageUnreachable, match="could not be read"):
            await answered(content)
