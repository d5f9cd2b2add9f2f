"""Which credential an address or a connection string gives, and how errors and log lines come out."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import DefaultAzureCredential

from coordinator import logs
from coordinator.azure.credentials import AioCredential, Endpoints
from coordinator.azure.errors import translated
from coordinator.errors import AccessDenied, StorageUnreachable

URL = "https://shop.blob.core.windows.net"


class Token:
    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken(f"for {scopes[0]}", 4_000_000_000)


def test_the_credential_is_the_one_that_was_given() -> None:
    token = Token()
    assert Endpoints.from_account_url(URL, token).credential is token
    signed = Endpoints.from_account_url(URL, "?sig=1").credential
    assert isinstance(signed, AzureSasCredential) and signed.signature == "sig=1"
    signed = Endpoints.from_account_url(f"{URL}?sig=2").credential
    assert isinstance(signed, AzureSasCredential) and signed.signature == "sig=2"
    assert isinstance(Endpoints.from_account_url(URL).credential, DefaultAzureCredential)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("AccountName=shop;AccountKey=c2VzYW1l", AzureNamedKeyCredential),
        ("AccountName=shop;SharedAccessSignature=?sig=3", AzureSasCredential),
    ],
)
def test_a_connection_string_has_a_key_or_a_signature(text: str, kind: type) -> None:
    endpoints = Endpoints.from_connection_string(text)
    assert isinstance(endpoints.credential, kind)
    assert endpoints.queue == "https://shop.queue.core.windows.net"


async def test_one_credential_serves_both_faces_and_stays_the_callers() -> None:
    async with AioCredential(Token()) as credential:
        got = await credential.get_token("https://storage.azure.com/.default")
    assert got.token == "for https://storage.azure.com/.default"


@pytest.mark.parametrize(
    ("error", "kind", "words", "maybe_done"),
    [
        (ClientAuthenticationError("no identity"), AccessDenied, "no credential was accepted", False),
        (TimeoutError(), StorageUnreachable, "gave no answer in time", True),
        (aiohttp.ClientPayloadError("cut"), StorageUnreachable, "broke off (ClientPayloadError)", True),
    ],
)
def test_what_the_client_raises_becomes_an_error_that_says_what_is_known(
    error: Exception, kind: type[Exception], words: str, maybe_done: bool
) -> None:
    with pytest.raises(kind) as raised, translated("write", "orders"):
        raise error
    assert words in str(raised.value) and str(raised.value).startswith("write orders: ")
    assert raised.value.maybe_done is maybe_done  # type: ignore[attr-defined]
    assert raised.value.__cause__ is error


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_for_machines_is_one_json_object_with_its_fields(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(level="info", as_json=True)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("shop").warning("Order %s\nfailed", 7, exc_info=True, extra={"action": "sell"})
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == ("warning", "shop", "Order 7\nfailed")
    assert told["action"] == "sell" and "ValueError: two" in told["trace"]
    assert "args" not in told


def test_a_line_for_people_cannot_be_forged(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure()
    try:
        raise ValueError("two\nINFO forged")
    except ValueError:
        logging.getLogger("shop").exception("Order\nINFO forged")
    lines = capsys.readouterr().err.splitlines()
    assert "Order\\nINFO forged" in lines[0]
    assert all(line.startswith("    ") for line in lines[1:])


async def test_a_time_out_of_asyncio_is_one_of_storage() -> None:
    with pytest.raises(StorageUnreachable), translated("read", "orders"):
        async with asyncio.timeout(0):
            await asyncio.sleep(1)
