import asyncio
import re

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.core.rest import HttpRequest
from azure.data.tables import TableErrorCode
from azure.storage.blob import StorageErrorCode as BlobErrorCode
from azure.storage.queue import StorageErrorCode as QueueErrorCode

from coordinator.azure.errors import BY_CODE, translate, translated
from coordinator.azure.metering import (
    CountingAioTransport,
    CountingRequestsTransport,
    Meter,
    aio_session,
    blocking_session,
)
from coordinator.errors import NotFound, StorageBusy, StorageError, StorageUnreachable

# Of services and features that Kennel never calls: files, shares, tiers, page blobs, copies, snapshots.
_FOREIGN = re.compile(
    "Share|File|Path|Directory|Snapshot|Tier|Copy|Page|Archived|Rehydrat|Provisioned|DeletePending|ParentNotFound"
    "|ClientCacheFlush|InvalidFlush|SequenceNumberIncrement|InvalidSource|QuotaDowngrade|FeatureVersion|SharingViolation"
)


def test_every_error_code_of_the_services_we_call_is_mapped():
    codes = {code.value for enum in (BlobErrorCode, QueueErrorCode, TableErrorCode) for code in enum}
    unmapped = {code for code in codes - set(BY_CODE) if not _FOREIGN.search(code)}
    assert unmapped == set()


def _answer(status: int, code: str = "") -> HttpResponseError:
    error = HttpResponseError("no")
    error.status_code = status
    error.error_code = code
    return error


@pytest.mark.parametrize(
    ("status", "code", "kind", "maybe_done"),
    [
        (404, "BlobNotFound", NotFound, False),
        (404, "", NotFound, False),
        (503, "ServerBusy", StorageBusy, True),
        (500, "", StorageBusy, True),
        (418, "", StorageError, False),
    ],
)
def test_an_answer_becomes_the_error_of_its_code_or_else_of_its_status(status, code, kind, maybe_done):
    error = translate(_answer(status, code), "read", "gate x")
    assert type(error) is kind
    assert (error.status, error.code, error.resource) == (status, code, "gate x")
    assert error.maybe_done is maybe_done


def test_a_request_that_was_never_sent_is_surely_not_done():
    assert translate(ServiceRequestError("refused"), "write", "x").maybe_done is False


async def test_a_request_that_never_found_a_connection_is_not_done(unused_tcp_port: int) -> None:
    for error in await refusals(f"http://127.0.0.1:{unused_tcp_port}/"):
        assert error.maybe_done is False


async def test_a_write_whose_connection_broke_off_is_maybe_done_and_not_sent_again() -> None:
    seen = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        # Clients tend to send again over a new connection what fails on one that answered before.
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        errors = await refusals(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    assert [error.maybe_done for error in errors] == [True, True]
    assert len(seen) == 4


async def refusals(url: str) -> list[StorageError]:
    """What a PUT over each transport, after one that may succeed, becomes."""
    errors = []
    async with aio_session() as session:
        transport = CountingAioTransport(session, service="table", base_path="", meter=Meter())

        async def send() -> None:
            with translated("write", "x"):
                await transport.send(HttpRequest("PUT", url))
                await transport.send(HttpRequest("PUT", url))

        with pytest.raises(StorageError) as raised:
            await send()
        errors.append(raised.value)
    with blocking_session() as blocking:
        plain = CountingRequestsTransport(blocking, service="table", base_path="", meter=Meter())

        def send_blocking() -> None:
            with translated("write", "x"):
                plain.send(HttpRequest("PUT", url))
                plain.send(HttpRequest("PUT", url))

        with pytest.raises(StorageError) as raised:
            await asyncio.to_thread(send_blocking)
        errors.append(raised.value)
    return errors


def test_a_write_whose_answer_was_lost_is_maybe_done():
    error = translate(ServiceResponseError("cut"), "write", "x")
    assert isinstance(error, StorageUnreachable)
    assert error.maybe_done is True


def test_the_cause_is_kept():
    cause = _answer(404, "BlobNotFound")
    with pytest.raises(NotFound) as caught, translated("read", "x"):
        raise cause
    assert caught.value.__cause__ is cause
