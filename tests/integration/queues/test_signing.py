"""Requests without the SDK are signed as the account wants it: key, SAS or token. Another's answer is no answer."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from azure.core.credentials import AccessToken, AzureSasCredential
from azure.storage.queue import AccountSasPermissions, ResourceTypes, Services, generate_account_sas

from coordinator import Storage
from coordinator.azure.credentials import AZURITE_ACCOUNT, AZURITE_KEY, Endpoints
from coordinator.azure.rest import signer_for
from coordinator.errors import AccessDenied, StorageUnreachable
from coordinator.gates.azure import BlobGateStore
from coordinator.gates.state import GateState


def with_credential(connection_string: str, credential: object) -> Storage:
    known = Endpoints.from_connection_string(connection_string)
    return Storage(Endpoints(known.account, known.blob, known.queue, known.table, credential))  # type: ignore[arg-type]


def sas(permission: str) -> AzureSasCredential:
    return AzureSasCredential(
        generate_account_sas(
            AZURITE_ACCOUNT,
            AZURITE_KEY,
            resource_types=ResourceTypes(service=True, container=True, object=True),
            permission=AccountSasPermissions.from_string(permission),
            expiry=datetime.now(UTC) + timedelta(hours=1),
            services=Services(queue=True, blob=True),
        )
    )


async def test_a_sas_serves_for_every_message_call(connection_string: str, storage_prefix: str) -> None:
    async with with_credential(connection_string, sas("rwdlacup")) as storage:
        transport = storage.queue(f"{storage_prefix}work").transport
        await transport.create()
        await transport.put("a & b")
        assert [message.text for message in await transport.peek(1)] == ["a & b"]
        (message,) = await transport.get(1, visibility_seconds=30)
        receipt = await transport.update(message.id, message.receipt, visibility_seconds=30, text="c")
        assert await transport.count() == 1
        await transport.delete(message.id, receipt)
        assert await transport.count() == 0


async def test_a_sas_serves_for_gates(connection_string: str, storage_prefix: str) -> None:
    async with with_credential(connection_string, sas("rwdlacup")) as storage:
        store = BlobGateStore(storage, f"{storage_prefix}on sale")
        assert (await store.read("")).etag == ""
        etag = await store.write(GateState(name=store.name, state="open"), "")
        answer = await store.read("")
        assert (answer.etag, answer.state.state) == (etag, "open")
        assert (await store.read(etag)).state is None
    async with with_credential(connection_string, sas("r")) as storage:
        with pytest.raises(AccessDenied):
            await BlobGateStore(storage, store.name).write(answer.state, etag)


async def test_a_page_of_a_proxy_is_no_empty_queue_and_no_gate(connection_string: str) -> None:
    async def page(request: web.BaseRequest) -> web.Response:
        return web.Response(text="<html><body>Please sign in</body></html>", content_type="text/html")

    async with RawTestServer(page) as proxy:
        known = Endpoints.from_connection_string(connection_string)
        address = str(proxy.make_url("/")).rstrip("/")
        async with Storage(
            Endpoints(known.account, address, address, known.table, known.credential)
        ) as storage:
            queue = storage.queue("work").transport
            for asked in (queue.count(), queue.get(1, visibility_seconds=30), queue.put("x")):
                with pytest.raises(StorageUnreachable, match="proxy"):
                    await asked
            with pytest.raises(StorageUnreachable, match="proxy"):
                await BlobGateStore(storage, "sale").read("")


async def test_a_sas_that_allows_too_little_is_told_as_refused(
    connection_string: str, storage_prefix: str
) -> None:
    async with with_credential(connection_string, sas("r")) as storage:
        with pytest.raises(AccessDenied):
            await storage.queue(f"{storage_prefix}work").transport.put("x")


async def test_a_wrong_key_is_told_as_refused_and_never_shown(
    connection_string: str, storage_prefix: str
) -> None:
    wrong = connection_string.replace(AZURITE_KEY, "c2VjcmV0c2VjcmV0")
    async with Storage.from_connection_string(wrong) as storage:
        with pytest.raises(AccessDenied) as caught:
            await storage.queue(f"{storage_prefix}work").transport.put("x")
    assert "c2VjcmV0" not in str(caught.value)


class Identity:
    """A token credential whose tokens live as long as it is told."""

    def __init__(self, lifetime_seconds: float) -> None:
        self.lifetime_seconds = lifetime_seconds
        self.asked: list[str] = []

    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        self.asked += scopes
        return AccessToken(f"token-{len(self.asked)}", int(time.time() + self.lifetime_seconds))


@pytest.mark.parametrize(
    ("lifetime", "tokens"), [(3600, ["token-1", "token-1"]), (60, ["token-1", "token-2"])]
)
async def test_a_token_is_used_until_shortly_before_it_ends(
    connection_string: str, lifetime: float, tokens: list[str]
) -> None:
    # No request is made: over plain HTTP nobody takes a token.
    identity = Identity(lifetime)
    signer = signer_for(with_credential(connection_string, identity))
    seen = []
    for _ in tokens:
        headers: dict[str, str] = {}
        assert (
            await signer.sign("GET", "/a/work/messages", {}, headers, 0, "numofmessages=1")
            == "numofmessages=1"
        )
        seen.append(headers["Authorization"])
    assert seen == [f"Bearer {token}" for token in tokens]
    assert set(identity.asked) == {"https://storage.azure.com/.default"}
