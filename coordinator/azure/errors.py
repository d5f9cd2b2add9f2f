"""The one seam where the service's errors become Kennel's, matched by the service's error code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import requests
import urllib3
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

_NOT_CONNECTED = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    requests.ConnectTimeout,
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
)

# The SDK lets these through when the answer to a batch of table operations, or one it streams, is cut short.
_BROKEN_OFF = (aiohttp.ClientError, requests.RequestException, urllib3.exceptions.HTTPError)

_CODES: dict[type[StorageError], str] = {
    AccessDenied: (
        "AccountIsDisabled AuthenticationFailed AuthorizationFailure AuthorizationPermissionMismatch "
        "ContainerDisabled InsufficientAccountPermissions InvalidAuthenticationInfo "
        "NoAuthenticationInformation QueueDisabled UnauthorizedBlobOverwrite"
    ),
    AlreadyExists: (
        "AccountAlreadyExists BlobAlreadyExists ContainerAlreadyExists EntityAlreadyExists QueueAlreadyExists "
        "ResourceAlreadyExists TableAlreadyExists"
    ),
    BeingDeleted: ("ContainerBeingDeleted QueueBeingDeleted TableBeingDeleted"),
    InvalidRequest: (
        "BlockCountExceedsLimit BlockListTooLong ConditionHeadersNotSupported ContentLengthMustBeZero "
        "DuplicatePropertiesSpecified EmptyMetadataKey EntityTooLarge HostInformationNotPresent "
        "InfiniteLeaseDurationRequired InvalidBlobOrBlock InvalidBlobType InvalidBlockId InvalidBlockList "
        "InvalidDuplicateRow InvalidHeaderValue InvalidHttpVerb InvalidInput InvalidMarker InvalidMd5 "
        "InvalidMetadata InvalidOperation InvalidPropertyName InvalidQueryParameterValue InvalidRange "
        "InvalidResourceName InvalidUri InvalidValueType InvalidXmlDocument InvalidXmlNodeValue "
        "JsonFormatNotSupported Md5Mismatch MessageTooLarge MetadataTooLarge MethodNotAllowed "
        "MissingContentLengthHeader MissingRequiredHeader MissingRequiredQueryParameter "
        "MissingRequiredXmlNode MultipleConditionHeadersNotSupported NotImplemented OutOfRangeInput "
        "OutOfRangeQueryParameterValue PropertiesNeedValue PropertyLimitExceeded PropertyNameInvalid "
        "PropertyNameTooLong PropertyValueTooLarge ReadOnlyAttribute RequestBodyTooLarge "
        "RequestUrlFailedToParse ResourceTypeMismatch TooManyProperties UnsupportedHeader UnsupportedHttpVerb "
        "UnsupportedQueryParameter UnsupportedRestVersion UnsupportedXmlNode XMethodIncorrectCount "
        "XMethodIncorrectValue XMethodNotUsingPost"
    ),
    LeaseHeld: ("LeaseAlreadyPresent LeaseIdMissing LeaseIsBreakingAndCannotBeAcquired"),
    LeaseNotHeld: (
        "LeaseAlreadyBroken LeaseIdMismatchWithBlobOperation LeaseIdMismatchWithContainerOperation "
        "LeaseIdMismatchWithLeaseOperation LeaseIsAlreadyBroken LeaseIsBreakingAndCannotBeChanged "
        "LeaseIsBrokenAndCannotBeRenewed LeaseLost LeaseNameMismatch LeaseNotPresentWithBlobOperation "
        "LeaseNotPresentWithContainerOperation LeaseNotPresentWithLeaseOperation"
    ),
    NotFound: ("BlobNotFound ContainerNotFound EntityNotFound QueueNotFound ResourceNotFound TableNotFound"),
    PreconditionFailed: (
        "AppendPositionConditionNotMet BlobOverwritten ConditionNotMet MaxBlobSizeConditionNotMet "
        "QueueNotEmpty SequenceNumberConditionNotMet SourceConditionNotMet TargetConditionNotMet "
        "UpdateConditionNotSatisfied"
    ),
    ReceiptStale: ("MessageNotFound PopReceiptMismatch"),
    StorageBusy: ("AccountBeingCreated InternalError OperationTimedOut ServerBusy SystemInUse"),
}
BY_CODE = {code: kind for kind, codes in _CODES.items() for code in codes.split()}

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
        headers = getattr(error.response, "headers", None) or {}
        return refused(
            int(error.status_code),
            _code(error),
            error.reason or "",
            action,
            resource,
            retry_after=str(headers.get("Retry-After", "")),
        )
    if isinstance(error, ClientAuthenticationError):
        return AccessDenied(f"{action} {resource}: no credential was accepted ({error})", resource=resource)
    message = f"{action} {resource}: the storage service gave no answer ({type(error).__name__})"
    return StorageUnreachable(message, resource=resource, maybe_done=not _is_unsent(error))


def _is_unsent(error: AzureError) -> bool:
    """Whether no connection came about. The SDK's own type does not tell: it calls one that broke off later
    a request error, too."""
    if not isinstance(error, ServiceRequestError):
        return False
    return not list(_causes(error)) or is_not_connected(error)


def is_not_connected(error: BaseException) -> bool:
    """Whether the error says, itself or in its causes, that no connection was made: then the request had no effect."""
    return any(isinstance(cause, _NOT_CONNECTED) for cause in (error, *_causes(error)))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    while True:
        candidates = (
            getattr(error, "inner_exception", None),
            error.__cause__,
            getattr(error, "reason", None),
        )
        inner = next((each for each in (*candidates, *error.args) if isinstance(each, BaseException)), None)
        if inner is None or id(inner) in seen:
            return
        seen.add(id(inner))
        yield inner
        error = inner


def refused(
    status: int, code: str, reason: str, action: str, resource: str, *, retry_after: str = ""
) -> StorageError:
    """The Kennel error for an answer of that HTTP status, service error code and Retry-After header."""
    kind = BY_CODE.get(code) or BY_STATUS.get(status) or (StorageBusy if status >= 500 else StorageError)
    message = f"{action} {resource}: the storage service answered {status} {code or reason}".rstrip()
    return kind(
        message,
        resource=resource,
        status=status,
        code=code,
        maybe_done=status >= 500,
        retry_after_seconds=_seconds(retry_after),
    )


def _seconds(retry_after: str) -> float:
    """The wait asked for; 0 where the header is missing, or a date (the service sends seconds)."""
    return float(retry_after) if retry_after.isdecimal() and len(retry_after) < 10 else 0.0


@contextmanager
def translated(action: str, resource: str) -> Iterator[None]:
    """Raise Kennel's error for any SDK error inside the block, the cause kept."""
    try:
        yield
    except AzureError as error:
        raise translate(error, action, resource) from error
    except _BROKEN_OFF as error:
        message = f"{action} {resource}: the answer of the storage service broke off ({type(error).__name__})"
        raise StorageUnreachable(message, resource=resource, maybe_done=True) from error
    except TimeoutError as error:
        message = f"{action} {resource}: the storage service gave no answer in time"
        raise StorageUnreachable(message, resource=resource, maybe_done=True) from error


def _code(error: HttpResponseError) -> str:
    code = getattr(error, "error_code", None)
    if code is None and error.response is not None:
        code = getattr(error.response, "headers", {}).get("x-ms-error-code")
    return str(getattr(code, "value", code) or "")
