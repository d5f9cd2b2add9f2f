"""Requests to the blob and queue services, signed by hand: for what is asked so often, or waited for so eagerly, that the
processor time of the SDK's pipeline counts (2.7 ms a request against 0.5: decision 0033)."""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from yarl import URL

from coordinator.azure.account import Account
from coordinator.azure.errors import refused, translated
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
    """One service of an account. Does no I/O when built; uses the connections of the running loop."""

    def __init__(self, storage: Account, endpoint: str) -> None:
        self._storage = storage
        self._signer = signer_for(storage)
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
        passing: tuple[int, ...] = (),
    ) -> RestResponse:
        """One request, counted and never repeated. `path` is quoted already, `query` is not.

        Raises the `StorageError` for any other answer than success and those in `passing`; `action` and `resource` are
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
            raise StorageUnreachable(
                f"{action} {resource}: the storage service gave no answer ({type(error).__name__})",
                resource=resource,
                maybe_done=not unsent,
            ) from error
        if answer.status >= 300 and answer.status not in passing:
            code = answer.headers.get("x-ms-error-code") or _error_code(content)
            raise refused(
                answer.status,
                code,
                answer.reason or "",
                action,
                resource,
                retry_after=answer.headers.get("Retry-After", ""),
            )
        if answer.status < 300 and "x-ms-request-id" not in answer.headers:
            raise StorageUnreachable(
                f"{action} {resource}: another program or a proxy answered for the storage service; let storage traffic "
                "pass the proxy, or correct the address",
                resource=resource,
                maybe_done=True,
            )
        return RestResponse(answer.status, answer.headers, content)


class _SharedKey:
    """HMAC over the request as the service defines it."""

    def __init__(self, credential: AzureNamedKeyCredential) -> None:
        self._credential = credential
        self._key: tuple[str, bytes] = ("", b"")

    async def sign(
        self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str], length: int, parameters: str
    ) -> str:  # fmt: skip
        account, key = self._credential.named_key
        if self._key[0] != key:
            self._key = (key, base64.b64decode(key))
        resource = "".join([f"\n{name}:{query[name]}" for name in sorted(query)])
        ours = "".join([f"{name}:{headers[name]}\n" for name in sorted(headers) if name.startswith("x-ms-")])
        text = (
            f"{method}\n\n\n{length or ''}\n\n{headers.get('Content-Type', '')}\n\n\n"
            f"{headers.get('If-Match', '')}\n{headers.get('If-None-Match', '')}\n\n\n{ours}/{account}{path}{resource}"
        )
        digest = hmac.digest(self._key[1], text.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
        return parameters


class _Sas:
    """A signature that is part of the address."""

    def __init__(self, credential: AzureSasCredential) -> None:
        self._credential = credential

    async def sign(
        self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str], length: int, parameters: str
    ) -> str:  # fmt: skip
        signature = self._credential.signature.lstrip("?")
        return f"{parameters}&{signature}" if parameters else signature


class _Bearer:
    """A token of the machine's or user's identity, renewed before it ends, once for all who wait."""

    def __init__(self, credential: TokenCredential) -> None:
        self._credential = credential
        self._token = ""
        self._renew_at = 0.0

    async def sign(
        self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str], length: int, parameters: str
    ) -> str:  # fmt: skip
        if time.time() >= self._renew_at:
            with translated("get a token for", "the storage service"):
                token = await asyncio.to_thread(self._credential.get_token, _SCOPE)
            self._token = token.token
            self._renew_at = token.expires_on - _REFRESH_SECONDS
        headers["Authorization"] = f"Bearer {self._token}"
        return parameters


def signer_for(storage: Account) -> _SharedKey | _Sas | _Bearer:
    credential = storage.endpoints.credential
    if isinstance(credential, AzureNamedKeyCredential):
        return _SharedKey(credential)
    if isinstance(credential, AzureSasCredential):
        return _Sas(credential)
    return _Bearer(credential)


_last_date: tuple[int, str] = (0, "")


def _date(second: int) -> str:
    global _last_date
    if _last_date[0] != second:
        _last_date = (second, formatdate(second, usegmt=True))
    return _last_date[1]


def _error_code(content: bytes) -> str:
    found = re.search(rb"<Code>([^<]*)</Code>", content)
    return found.group(1).decode() if found else ""
