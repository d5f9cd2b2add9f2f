"""Where the account is and how to sign for it."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential, TokenCredential

from coordinator.errors import ConfigurationError

AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_SERVICES = {"blob": 10000, "queue": 10001, "table": 10002}

Credential = AzureNamedKeyCredential | AzureSasCredential | TokenCredential


@dataclass(frozen=True)
class Endpoints:
    """The three service addresses of one account, and the credential for all of them. Never shows the credential."""

    account: str
    blob: str
    queue: str
    table: str
    credential: Credential = field(repr=False)

    @property
    def is_emulator(self) -> bool:
        """Whether the account is the path of its addresses, not a part of their host's name: so emulators have it."""
        return bool(urlsplit(self.blob).path.strip("/"))

    @classmethod
    def from_connection_string(cls, connection_string: str) -> Endpoints:
        """Parse an Azure Storage connection string; errors name the missing part, never its content."""
        parts: dict[str, str] = {}
        for item in filter(None, connection_string.strip().split(";")):
            key, separator, value = item.partition("=")
            if not separator:
                raise ConfigurationError(
                    "the storage connection string has a part without '='; copy it again whole"
                )
            parts[key.strip().lower()] = value.strip()
        if parts.get("usedevelopmentstorage", "").lower() == "true":
            parts = {"accountname": AZURITE_ACCOUNT, "accountkey": AZURITE_KEY} | {
                f"{service}endpoint": f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
                for service, port in _SERVICES.items()
            }
        account = parts.get("accountname", "")
        scheme = parts.get("defaultendpointsprotocol", "https")
        suffix = parts.get("endpointsuffix", "core.windows.net")
        urls: dict[str, str] = {}
        for service in _SERVICES:
            url = parts.get(f"{service}endpoint", "")
            if not url and account:
                url = f"{scheme}://{account}.{service}.{suffix}"
            if not url:
                raise ConfigurationError(
                    f"the storage connection string has no AccountName and no {service} endpoint"
                )
            urls[service] = url.rstrip("/")
        account = account or urlsplit(urls["blob"]).netloc.split(".")[0]
        credential: Credential
        if account_key := parts.get("accountkey"):
            credential = AzureNamedKeyCredential(account, account_key)
        elif sas := parts.get("sharedaccesssignature"):
            credential = AzureSasCredential(sas.lstrip("?"))
        else:
            raise ConfigurationError(
                "the storage connection string has neither AccountKey nor SharedAccessSignature"
            )
        return cls(account, urls["blob"], urls["queue"], urls["table"], credential)

    @classmethod
    def from_account_url(cls, url: str, credential: str | TokenCredential | None = None) -> Endpoints:
        """The endpoints beside a blob endpoint such as ``https://ACCOUNT.blob.core.windows.net``."""
        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in ("http", "https") or ".blob." not in parts.netloc:
            raise ConfigurationError(
                f"AZURE_STORAGE_ACCOUNT_URL {parts.scheme}://{parts.netloc} is not a blob endpoint such as "
                "https://ACCOUNT.blob.core.windows.net"
            )
        sas = credential if isinstance(credential, str) else parts.query
        chosen: Credential
        if sas:
            chosen = AzureSasCredential(sas.lstrip("?"))
        elif credential is not None and not isinstance(credential, str):
            chosen = credential
        else:
            # Imported by whoever needs it: it takes a tenth of a worker's start.
            chosen = importlib.import_module("azure.identity").DefaultAzureCredential()
        base = f"{parts.scheme}://{parts.netloc}"
        blob, queue, table = (base.replace(".blob.", f".{service}.", 1) for service in _SERVICES)
        return cls(parts.netloc.split(".")[0], blob, queue, table, chosen)


class AioCredential:
    """A blocking token credential for the asyncio clients: one credential object serves both faces."""

    def __init__(self, credential: TokenCredential) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return await asyncio.to_thread(self._credential.get_token, *scopes, **options)

    async def close(self) -> None:
        """The blocking credential belongs to the caller."""

    async def __aenter__(self) -> AioCredential:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
