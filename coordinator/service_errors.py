"""The one seam where the service's errors become Kennel's, matched by the service's error code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
)

from coordinator.errors import (
    AccessDenied,
    AlreadyExists,
    BeingDeleted,
    InvalidRequest,
    LeaseHeld,
    LeaseNotHeld,
    NotFound,
    PreconditionFailed,
    ReceiptStale,
    StorageBusy,
    StorageError,
    StorageUnreachable,
)

BY_CODE: dict[str, type[StorageError]] = {
    "AccountBeingCreated": StorageBusy,
    "AuthenticationFailed": AccessDenied,
    "AuthorizationFailure": AccessDenied,
    "AuthorizationPermissionMismatch": AccessDenied,
    "InsufficientAccountPermissions": AccessDenied,
    "InvalidAuthenticationInfo": AccessDenied,
    "NoAuthenticationInformation": AccessDenied,
    "AccountIsDisabled": AccessDenied,
    "BlobAlreadyExists": AlreadyExists,
    "ContainerAlreadyExists": AlreadyExists,
    "EntityAlreadyExists": AlreadyExists,
    "QueueAlreadyExists": AlreadyExists,
    "TableAlreadyExists": AlreadyExists,
    "ContainerBeingDeleted": BeingDeleted,
    "QueueBeingDeleted": BeingDeleted,
    "TableBeingDeleted": BeingDeleted,
    "BlobNotFound": NotFound,
    "ContainerNotFound": NotFound,
    "EntityNotFound": NotFound,
    "QueueNotFound": NotFound,
    "ResourceNotFound": NotFound,
    "TableNotFound": NotFound,
    "ConditionNotMet": PreconditionFailed,
    "TargetConditionNotMet": PreconditionFailed,
    "UpdateConditionNotSatisfied": PreconditionFailed,
    "AppendPositionConditionNotMet": PreconditionFailed,
    "LeaseAlreadyPresent": LeaseHeld,
    "LeaseIsBreakingAndCannotBeAcquired": LeaseHeld,
    "LeaseIdMissing": LeaseHeld,
    "LeaseAlreadyBroken": LeaseNotHeld,
    "LeaseIdMismatchWithBlobOperation": LeaseNotHeld,
    "LeaseIdMismatchWithLeaseOperation": LeaseNotHeld,
    "LeaseIsBreakingAndCannotBeChanged": LeaseNotHeld,
    "LeaseIsBrokenAndCannotBeRenewed": LeaseNotHeld,
    "LeaseLost": LeaseNotHeld,
    "LeaseNotPresentWithBlobOperation": LeaseNotHeld,
    "LeaseNotPresentWithLeaseOperation": LeaseNotHeld,
    "MessageNotFound": ReceiptStale,
    "PopReceiptMismatch": ReceiptStale,
    "InternalError": StorageBusy,
    "OperationTimedOut": StorageBusy,
    "ServerBusy": StorageBusy,
    "InvalidHeaderValue": InvalidRequest,
    "InvalidInput": InvalidRequest,
    "InvalidMetadata": InvalidRequest,
    "InvalidQueryParameterValue": InvalidRequest,
    "InvalidResourceName": InvalidRequest,
    "InvalidXmlDocument": InvalidRequest,
    "MessageTooLarge": InvalidRequest,
    "OutOfRangeInput": InvalidRequest,
    "OutOfRangeQueryParameterValue": InvalidRequest,
    "PropertyLimitExceeded": InvalidRequest,
    "RequestBodyTooLarge": InvalidRequest,
}

BY_STATUS: dict[int, type[StorageError]] = {
    400: InvalidRequest,
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    409: AlreadyExists,
    412: PreconditionFailed,
    413: InvalidRequest,
    429: StorageBusy,
}


def translate(error: AzureError, action: str, resource: str) -> StorageError:
    """The Kennel error for what the SDK raised while doing `action` on `resource`.

    A write is `maybe_done` unless the service refused it or the request cannot have been sent.
    """
    if isinstance(error, HttpResponseError) and error.status_code:
        status = int(error.status_code)
        code = _code(error)
        kind = BY_CODE.get(code) or BY_STATUS.get(status) or (StorageBusy if status >= 500 else StorageError)
        message = f"{action} {resource}: the storage service answered {status} {code or error.reason or ''}".rstrip()
        return kind(message, resource=resource, status=status, code=code, maybe_done=status >= 500)
    if isinstance(error, ClientAuthenticationError):
        return AccessDenied(f"{action} {resource}: no credential was accepted ({error})", resource=resource)
    sent = not isinstance(error, ServiceRequestError) or "timeout" in type(error).__name__.lower()
    message = f"{action} {resource}: the storage service gave no answer ({type(error).__name__})"
    return StorageUnreachable(message, resource=resource, maybe_done=sent)


@contextmanager
def translated(action: str, resource: str) -> Iterator[None]:
    """Raise Kennel's error for any SDK error inside the block, the cause kept."""
    try:
        yield
    except AzureError as error:
        raise translate(error, action, resource) from error
    except TimeoutError as error:
        message = f"{action} {resource}: the storage service gave no answer in time"
        raise StorageUnreachable(message, resource=resource, maybe_done=True) from error


def _code(error: HttpResponseError) -> str:
    code = getattr(error, "error_code", None)
    if code is None and error.response is not None:
        code = getattr(error.response, "headers", {}).get("x-ms-error-code")
    return str(getattr(code, "value", code) or "")
