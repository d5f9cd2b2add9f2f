"""Configuration as values, checked when built. Only `Storage.from_env` and `Worker` read the environment."""

from __future__ import annotations

import re
from dataclasses import dataclass

from coordinator.errors import ConfigurationError

_PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9]|-(?!-)){0,29}-")
_CONTAINER = re.compile(r"[a-z0-9](?:[a-z0-9]|-(?!-)){1,61}[a-z0-9]")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9]|-(?!-)){1,46}[a-z0-9]")


@dataclass(frozen=True)
class StorageConfig:
    """How Kennel uses the storage account.

    Attributes:
        prefix: Start of the names of Kennel's containers and tables (default ``kennel-``). Two fleets with different
            prefixes share an account without meeting.
        connect_seconds: Bound of one connection attempt, 0.05 to 300 (default 5).
        read_seconds: Bound of one answer, 0.05 to 300 (default 10). Too small turns a slow answer into an ambiguous
            write, too large makes callers wait on a dead connection. Leases derive their own, shorter ones.

    Raises:
        ConfigurationError: A value is out of bounds.
    """

    prefix: str = "kennel-"
    connect_seconds: float = 5.0
    read_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigurationError(
                f"prefix {self.prefix!r}: use 2-31 lower-case letters, digits and single dashes, ending in a dash"
            )
        for field in ("connect_seconds", "read_seconds"):
            value = getattr(self, field)
            if not 0.05 <= value <= 300:
                raise ConfigurationError(f"{field} must be between 0.05 and 300 seconds, got {value}")

    def container(self, kind: str) -> str:
        """The blob container for one kind of thing: ``kennel-gates``, ``kennel-leases``, …

        Args:
            kind: The kind, such as ``gates``.

        Returns:
            The name of the container.
        """
        return f"{self.prefix}{kind}"

    def table(self, kind: str) -> str:
        """The table for one kind of thing. Table names allow no dash, so ``kennel-`` and ``ledger`` give
        ``kennelledger``.

        Args:
            kind: The kind, such as ``ledger``.

        Returns:
            The name of the table.
        """
        return f"{self.prefix}{kind}".replace("-", "")


def check_name(kind: str, name: str) -> str:
    """Return `name` if it may name a gate, queue, sequence or election (3-48 of a-z, 0-9, single dashes); else raise."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{kind} name {name!r}: use 3-48 lower-case letters, digits and single dashes, starting and ending "
            "with a letter or digit"
        )
    return name


def check_container(name: str) -> str:
    """Return `name` if a blob container may be called that (or ""); else raise."""
    if name and not _CONTAINER.fullmatch(name):
        raise ConfigurationError(
            f"container {name!r}: use 3-63 lower-case letters, digits and single dashes, starting and ending with a "
            "letter or digit"
        )
    return name


def check_blob(name: str) -> str:
    """Return `name` if a blob may be called that (or ""): what the service allows, capitals and slashes too; else raise."""
    if len(name) > 1024 or name.endswith((".", "/")) or not name.isprintable() or "\\" in name:
        raise ConfigurationError(
            f"blob {name[:80]!r}: use 1-1024 printable characters, no backslash, no dot or slash at the end"
        )
    return name
