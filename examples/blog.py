"""Deleting a channel and all its posts, in two tables: a saga that deletes everything, even if its process crashes.

``python -m examples.blog --posts 250`` starts its own storage if none is configured, deletes one of two channels and
prints what is left as one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coordinator import ANY, Delete, Insert, Saga, SagaContext, Storage, optimistic_update
from coordinator.errors import NotFound
from coordinator.tables.operations import split
from coordinator.testing.azurite import Azurite

CHANNELS = "channels"


class Blog:
    """Channels in one table (all in one partition), posts in another (a partition for each channel)."""

    def __init__(self, storage: Storage) -> None:
        self.channels = storage.table(storage.config.table("blogchannels"))
        self.posts = storage.table(storage.config.table("blogposts"))
        self.deletion: Saga[str] = storage.saga("delete-channel", input=str)
        self.deletion.step(attempts=None)(self.mark_invalid)
        self.deletion.step(attempts=None)(self.delete_posts)
        self.deletion.step(attempts=None)(self.delete_channel)

    # --- the application ----------------------------------------------------------------------------------------

    async def add_channel(self, name: str) -> None:
        await self.channels.write(Insert((CHANNELS, name), {"valid": True}))

    async def add_post(self, channel: str, number: int, text: str) -> bool:
        """False if the channel is gone or going. The second look catches a deletion that began after the first."""
        key = (channel, f"{number:08d}")
        if not await self.is_open(channel):
            return False
        await self.posts.write(Insert(key, {"text": text}))
        if not await self.is_open(channel):
            await self.posts.write(Delete(key, ANY))
            return False
        return True

    async def is_open(self, channel: str) -> bool:
        try:
            return bool((await self.channels.read((CHANNELS, channel)))["valid"])
        except NotFound:
            return False

    # --- the steps: each may run again --------------------------------------------------------------------------

    async def mark_invalid(self, context: SagaContext[str]) -> None:
        try:
            await optimistic_update(
                self.channels, (CHANNELS, context.input), lambda row: {**row, "valid": False}
            )
        except NotFound:
            return

    async def delete_posts(self, context: SagaContext[str]) -> None:
        while posts := await self.posts.top(1000, partition=context.input, select=()):
            for part in split(Delete(post.key, ANY) for post in posts):
                try:
                    await self.posts.transact(part)
                except NotFound:
                    break  # an earlier try was quicker than it could tell: look again

    async def delete_channel(self, context: SagaContext[str]) -> None:
        await self.channels.write(Delete((CHANNELS, context.input), ANY))


async def fill(blog: Blog, channel: str, posts: int) -> None:
    await blog.add_channel(channel)
    rows = [Insert((channel, f"{number:08d}"), {"text": f"post {number}"}) for number in range(posts)]
    for part in split(rows):
        await blog.posts.transact(part)


async def left(blog: Blog) -> dict[str, Any]:
    """What is in the two tables."""
    posts: dict[str, int] = {}
    async for post in blog.posts.scan(select=()):
        posts[post.key.partition] = posts.get(post.key.partition, 0) + 1
    return {"channels": {row.key.row: row["valid"] async for row in blog.channels.scan()}, "posts": posts}


async def main(posts: int) -> None:
    with storage_environment():
        async with Storage.from_env() as storage:
            blog = Blog(storage)
            run = f"{time.time_ns():x}"
            doomed, kept = f"doomed-{run}", f"kept-{run}"
            await fill(blog, doomed, posts)
            await fill(blog, kept, posts)
            await blog.deletion.start(doomed, doomed)
            listener = blog.deletion.listener(tasks=range(1, 3))
            listening = asyncio.create_task(listener.run())
            progress = await blog.deletion.wait(doomed)
            await listener.stop()
            await listening
            print(
                json.dumps(
                    {"state": progress.state, **await left(blog), "requests": storage.meter.by_operation()}
                )
            )


@contextmanager
def storage_environment() -> Iterator[None]:
    """The storage that the environment names, or an emulator of our own."""
    if os.environ.get("AZURE_STORAGE_CONNECTION_STRING") or os.environ.get("AZURE_STORAGE_ACCOUNT_URL"):
        yield
        return
    with Azurite() as azurite:
        os.environ["AZURE_STORAGE_CONNECTION_STRING"] = azurite.connection_string
        yield


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Delete a channel and all its posts.")
    parser.add_argument("--posts", type=int, default=250)
    asyncio.run(main(parser.parse_args().posts))
