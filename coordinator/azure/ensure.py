"""Containers and tables are made when a write finds them missing, at no cost while they are there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from coordinator.azure.account import Account
from coordinator.azure.errors import translated
from coordinator.errors import AlreadyExists, NotFound

T = TypeVar("T")


async def ensure_container(storage: Account, container: str, write: Callable[[], Awaitable[T]]) -> T:
    """What `write` gives; after `NotFound` the container is made and `write` called once more."""
    try:
        return await write()
    except NotFound:
        with suppress(AlreadyExists), translated("create the container", container):
            await storage.aio.blobs.create_container(container)
    return await write()


async def ensure_table(storage: Account, table: str, write: Callable[[], Awaitable[T]]) -> T:
    """What `write` gives; if the table (not a row) is missing, it is made and `write` called once more."""
    try:
        return await write()
    except NotFound as error:
        if error.code != "TableNotFound":
            raise
        with suppress(AlreadyExists), translated("create the table", table):
            await storage.aio.tables.create_table(table)
    return await write()
