"""May this credential do what Kennel does? Tried on things made for the trial and deleted after it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from coordinator.azure.credentials import Credential
from coordinator.azure.errors import translated
from coordinator.doctor.findings import Finding
from coordinator.errors import AccessDenied, StorageError
from coordinator.storage import Storage

ROLES = {
    "blob": "Storage Blob Data Contributor",
    "queue": "Storage Queue Data Contributor",
    "table": "Storage Table Data Contributor",
}
SAS = {
    "blob": "ss=b srt=sco sp=rwdlact",
    "queue": "ss=q srt=sco sp=rwdlacup",
    "table": "ss=t srt=sco sp=rwdlacu",
}
NETWORK = "If it has that already, the account's network rules refuse this machine."
UNKNOWN_SIGNER = {"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"}


SOON_SECONDS = 7 * 24 * 3600.0


def check_signature(credential: Credential, now: float) -> Iterator[Finding]:
    """Whether a shared access signature has run out, or will soon. Says nothing of other credentials."""
    expiry = parse_qs(getattr(credential, "signature", "")).get("se", [""])[0]
    try:
        ends = datetime.fromisoformat(expiry)
    except ValueError:
        return
    left = (ends if ends.tzinfo else ends.replace(tzinfo=UTC)).timestamp() - now
    if left < SOON_SECONDS:
        found = f"the shared access signature {'expired' if left < 0 else 'expires'} at {expiry}"
        renew = "Create a new one and set all of it; an Azure identity does not expire."
        yield Finding("storage signature", "fault" if left < 0 else "warning", found, renew)


async def check(storage: Storage, service: str) -> Finding:
    """Make something of each kind, use it as Kennel does, delete it. Leaves nothing behind if all goes well."""
    name = f"{service} rights"
    made = f"{storage.config.prefix}doctor-{secrets.token_hex(6)}"
    try:
        with translated("use the", f"{service} service"):
            done = await TRIALS[service](storage, made)
    except StorageError as error:
        return failure(name, service, storage, error)
    return Finding(name, "ok", done)


def failure(check: str, service: str, storage: Storage, error: StorageError) -> Finding:
    """A request that the service did not carry out is a fault, whichever check sent it."""
    if isinstance(error, AccessDenied):
        remedy = cure(service, storage.endpoints.credential, error.code)
        return Finding(check, "fault", _refusal(error), remedy)
    remedy = "Run this again; if it stays, quote this line to Azure's support."
    return Finding(check, "fault", str(error), remedy)


def cure(service: str, credential: Credential, code: str) -> str:
    """What to do about a refusal, by the kind of credential."""
    if hasattr(credential, "get_token"):
        if not code:
            return (
                "No Azure identity was found: give this machine a managed identity, or set AZURE_CLIENT_ID, "
                "AZURE_TENANT_ID and a federated token or certificate, or sign in with `az login`."
            )
        return f"Give this identity the role “{ROLES[service]}” on the account; it takes effect within minutes. {NETWORK}"
    if hasattr(credential, "signature"):
        if code in UNKNOWN_SIGNER:
            return "The shared access signature has expired or was cut off when copied: create a new one, and set all of it."
        return f"Create a shared access signature that allows it: {SAS[service]}. {NETWORK}"
    return (
        "The account key is wrong or was rotated: copy the connection string again from the account's “Access keys”. "
        "If the account forbids keys, set AZURE_STORAGE_ACCOUNT_URL instead and use an Azure identity."
    )


def _refusal(error: AccessDenied) -> str:
    return f"refused with {error.status} {error.code}" if error.code else "no credential was accepted"


async def _blobs(storage: Storage, name: str) -> str:
    container = storage.aio.blobs.get_container_client(name)
    await container.create_container()
    try:
        blob = container.get_blob_client("trial")
        await blob.upload_blob(b"1", metadata={"epoch": "1"})
        lease = await blob.acquire_lease(lease_duration=15)
        await lease.release()
        tags = await _may_tag(blob)
        await blob.delete_blob()
    finally:
        await container.delete_container()
    return f"may create, write, lease and delete{tags}"


async def _may_tag(blob: Any) -> str:
    """Only leaders that fence their own blobs need it, so a refusal is no fault."""
    try:
        with translated("tag", "a blob"):
            await blob.set_blob_tags({"epoch": "1"})
    except StorageError:
        return "; not tag: leaders that fence blobs by tags need Storage Blob Data Owner, or permission t"
    return ", and tag"


async def _queues(storage: Storage, name: str) -> str:
    queue = storage.aio.queues.get_queue_client(name)
    await queue.create_queue()
    try:
        await queue.send_message("trial")
        async for message in queue.receive_messages(max_messages=1, messages_per_page=1):
            await queue.delete_message(message)
    finally:
        await queue.delete_queue()
    return "may create, put, get and delete"


async def _tables(storage: Storage, name: str) -> str:
    table = storage.aio.tables.get_table_client(name.replace("-", ""))
    await table.create_table()
    try:
        row: dict[str, Any] = {"PartitionKey": "trial", "RowKey": "1"}
        await table.create_entity(row)
        await table.delete_entity("trial", "1")
    finally:
        await table.delete_table()
    return "may create, insert and delete"


TRIALS: dict[str, Callable[[Storage, str], Awaitable[str]]] = {
    "blob": _blobs,
    "queue": _queues,
    "table": _tables,
}
