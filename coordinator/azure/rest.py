"""Requests to the storage services, signed by hand: for what is asked so often, or waited for so eagerly, that the
processor time of the SDK's pipeline counts (2.7 ms a request against 0.5: decision 0033)."""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp
import requests
import urllib3
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from requests.structures import CaseInsensitiveDict
from yarl import URL

from coordinator.azure.account import Account
from coordinator.azure.errors import is_not_connected, refused, translated
from coordinator.azure.metering import Request
from coordinator.errors import StorageUnreachable

VERSION = "2023-11-03"
_SCOPE = "https://storage.azure.com/.default"
_UNSIGNED = ("Content-Type", "Accept-Encoding", "User-Agent")
_REFRESH_SECONDS = 300.0


class RestResponse(NamedTuple):
    """An answer of the service."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class SignedRest:
    """One service of an account. Does no I/O when built; uses the connections of the running loop. `service` is as it is signed for:
    "blob", which queues are too, or "table"."""

    def __init__(self, storage: Account, endpoint: str, *, service: str = "blob") -> None:
        self._storage = storage
        self._signer = signer_for(storage, service)
        base = urlsplit(endpoint)
        self._origin, self._base = f"{base.scheme}://{base.netloc}", base.path
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=storage.config.connect_seconds, sock_read=storage.config.read_seconds
        )

    async def send(
        self,
        action: str,
        resource: str,
        counted: Request,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        accepted_statuses: tuple[int, ...] = (),
    ) -> RestResponse:
        """One request, counted and never repeated. `path` is quoted already, `query` is not.

        Raises the `StorageError` for any other answer than success and those in `accepted_statuses`; `action` and `resource` are
        named in it. A success without the header that all the service's answers have is somebody else's, and an error.
        """
        query, path = query or {}, self._base + path
        signed = {"x-ms-date": _date(int(time.time())), "x-ms-version": VERSION, **(headers or {})}
        parameters = "&".join([f"{name}={quote(value, safe='')}" for name, value in query.items()])
        parameters = await self._signer.sign(method, path, query, signed, len(body), parameters)
        url = URL(f"{self._origin}{path}?{parameters}" if parameters else self._origin + path, encoded=True)
        self._storage.meter.count(counted, bytes_sent=len(body))
        try:
            async with self._storage.aio.session.request(
                method,
                url,
                data=body or None,
                headers=signed,
                timeout=self._timeout,
                allow_redirects=False,
                skip_auto_headers=_UNSIGNED,
            ) as answer:
                content = await answer.read()
                self._storage.meter.answered(counted, len(content))
        except (aiohttp.ClientError, TimeoutError) as error:
            # Only a connection that was never made proves that nothing was done.
            unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            raise _no_answer(action, resource, error, maybe_done=not unsent) from error
        return _judged(
            RestResponse(answer.status, answer.headers, content),
            answer.reason or "",
            action,
            resource,
            accepted_statuses,
        )


class BlockingRest:
    """The same for threads, over the connections that they share. `service` is "blob" or "table"."""

    def __init__(self, storage: Account, endpoint: str, *, service: str) -> None:
        self._storage = storage
        self._signer = signer_for(storage, service)
        base = urlsplit(endpoint)
        self.origin, self.base = f"{base.scheme}://{base.netloc}", base.path
        self._surroundings: dict[str, Any] = {}

    def send(
        self,
        action: str,
        resource: str,
        counted: Request,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        accepted_statuses: tuple[int, ...] = (),
    ) -> RestResponse:
        """As `SignedRest.send`."""
        query, path = query or {}, self.base + path
        signed = {"x-ms-date": _date(int(time.time())), "x-ms-version": VERSION, **(headers or {})}
        parameters = "&".join([f"{name}={quote(value, safe='')}" for name, value in query.items()])
        if self._signer.is_stale:
            self._signer.renew()
        parameters = self._signer.sign_now(method, path, query, signed, len(body), parameters)
        request = requests.PreparedRequest()
        request.method = method
        request.url = f"{self.origin}{path}?{parameters}" if parameters else self.origin + path
        request.headers = CaseInsensitiveDict(signed)
        if method != "GET":
            request.body = body
            request.headers["Content-Length"] = str(len(body))
        session, config = self._storage.blocking.session, self._storage.config
        if not self._surroundings:  # proxies and certificates, as the environment has them
            self._surroundings = dict(session.merge_environment_settings(self.origin, {}, False, None, None))
        self._storage.meter.count(counted, bytes_sent=len(body))
        try:
            # Past the session's own `send`, whose hooks, cookies and redirects cost as much as all the rest.
            answer = session.get_adapter(request.url).send(
                request, timeout=(config.connect_seconds, config.read_seconds), **self._surroundings
            )
            content = answer.content
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise _no_answer(action, resource, error, maybe_done=not is_not_connected(error)) from error
        self._storage.meter.answered(counted, len(content))
        return _judged(
            RestResponse(answer.status_code, answer.headers, content), answer.reason or "", action, resource, accepted_statuses
        )  # fmt: skip


def _no_answer(action: str, resource: str, error: Exception, *, maybe_done: bool) -> StorageUnreachable:
    return StorageUnreachable(
        f"{action} {resource}: the storage service gave no answer ({type(error).__name__})",
        resource=resource,
        maybe_done=maybe_done,
    )


def _judged(
    answer: RestResponse, reason: str, action: str, resource: str, accepted_statuses: tuple[int, ...]
) -> RestResponse:
    if answer.status >= 300 and answer.status not in accepted_statuses:
        code = answer.headers.get("x-ms-error-code") or error_code(answer.content)
        raise refused(
            answer.status, code, reason, action, resource, retry_after=answer.headers.get("Retry-After", "")
        )
    if answer.status < 300 and "x-ms-request-id" not in answer.headers:
        raise StorageUnreachable(
            f"{action} {resource}: another program or a proxy answered for the storage service; let storage traffic "
            "pass the proxy, or correct the address",
            resource=resource,
            maybe_done=True,
        )
    return answer


class _Signer:
    """Says in each request who sends it."""

    is_stale = False

    def renew(self) -> None:
        """Get what signing takes, if that ages. Blocking."""

    def sign_now(
        self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str], length: int, parameters: str
    ) -> str:  # fmt: skip
        """Add to the headers, or to the parameters, which are returned."""
        raise NotImplementedError

    async def sign(
        self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str], length: int, parameters: str
    ) -> str:  # fmt: skip
        """The same, having renewed what is stale."""
        if self.is_stale:
            await asyncio.to_thread(self.renew)
        return self.sign_now(method, path, query, headers, length, parameters)


class _SharedKey(_Signer):
    """HMAC over the request as the service defines it."""

    def __init__(self, credential: AzureNamedKeyCredential, service: str) -> None:
        self._credential = credential
        self._for_table = service == "table"
        self._key: tuple[str, bytes] = ("", b"")

    def sign_now(
        self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str], length: int, parameters: str
    ) -> str:  # fmt: skip
        account, key = self._credential.named_key
        cached = self._key
        if cached[0] != key:
            cached = self._key = (key, base64.b64decode(key))
        kind = headers.get("Content-Type", "")
        if self._for_table:
            text = f"{method}\n\n{kind}\n{headers['x-ms-date']}\n/{account}{path}"
        else:
            resource = "".join([f"\n{name}:{query[name]}" for name in sorted(query)])
            ours = sorted((name for name in headers if name.startswith("x-ms-")), key=_service_order)
            lines = "".join([f"{name.lower()}:{headers[name]}\n" for name in ours])
            text = (
                f"{method}\n\n\n{length or ''}\n\n{kind}\n\n\n"
                f"{headers.get('If-Match', '')}\n{headers.get('If-None-Match', '')}\n\n\n{lines}/{account}{path}{resource}"
            )
        digest = hmac.digest(cached[1], text.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
        return parameters


def _service_order(name: str) -> str:
    """The service sorts an underscore before digits."""
    return name.lower().replace("_", "!")


class _Sas(_Signer):
    """A signature that is part of the address."""

    def __init__(self, credential: AzureSasCredential) -> None:
        self._credential = credential

    def sign_now(
        self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str], length: int, parameters: str
    ) -> str:  # fmt: skip
        signature = self._credential.signature.lstrip("?")
        return f"{parameters}&{signature}" if parameters else signature


class _Bearer(_Signer):
    """A token of the machine's or user's identity, renewed before it ends."""

    def __init__(self, credential: TokenCredential) -> None:
        self._credential = credential
        self._token = ""
        self._renew_at = 0.0

    @property
    def is_stale(self) -> bool:  # type: ignore[override]
        return time.time() >= self._renew_at

    def renew(self) -> None:
        with translated("get a token for", "the storage service"):
            token = self._credential.get_token(_SCOPE)
        self._token = token.token
        self._renew_at = token.expires_on - _REFRESH_SECONDS

    def sign_now(
        self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str], length: int, parameters: str
    ) -> str:  # fmt: skip
        headers["Authorization"] = f"Bearer {self._token}"
        return parameters


def signer_for(storage: Account, service: str = "blob") -> _Signer:
    credential = storage.endpoints.credential
    if isinstance(credential, AzureNamedKeyCredential):
        return _SharedKey(credential, service)
    if isinstance(credential, AzureSasCredential):
        return _Sas(credential)
    return _Bearer(credential)


_last_date: tuple[int, str] = (0, "")


def _date(second: int) -> str:
    global _last_date
    if _last_date[0] != second:
        _last_date = (second, formatdate(second, usegmt=True))
    return _last_date[1]


def error_code(content: bytes) -> str:
    """The service's own code, from the body of an error: the table service writes JSON, the others XML."""
    found = re.search(rb"""<Code>([^<]*)</Code>|"code"\s*:\s*"([^"]*)\"""", content)
    return (found.group(1) or found.group(2) or b"").decode(errors="replace") if found else ""
