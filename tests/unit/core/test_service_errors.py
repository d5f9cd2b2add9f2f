import re

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.data.tables import TableErrorCode
from azure.storage.blob import StorageErrorCode as BlobErrorCode
from azure.storage.queue import StorageErrorCode as QueueErrorCode

from coordinator.errors import NotFound, StorageBusy, StorageError, StorageUnreachable
from coordinator.service_errors import BY_CODE, translate, translated

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


def test_a_write_whose_answer_was_lost_is_maybe_done():
    error = translate(ServiceResponseError("cut"), "write", "x")
    assert isinstance(error, StorageUnreachable)
    assert error.maybe_done is True


def test_the_cause_is_kept():
    cause = _answer(404, "BlobNotFound")
    with pytest.raises(NotFound) as caught, translated("read", "x"):
        raise cause
    assert caught.value.__cause__ is cause
