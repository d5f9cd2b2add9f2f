"""Queues and gates used from threads in a program that forks: gunicorn with preload, Celery, multiprocessing."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

from coordinator.config import StorageConfig
from coordinator.storage import Storage


@pytest.fixture
def storage(connection_string: str, storage_prefix: str) -> Iterator[Storage]:
    made = Storage.from_connection_string(connection_string, config=StorageConfig(prefix=storage_prefix))
    yield made
    made.close()


def test_a_child_puts_and_asks_although_its_parent_did_before_it_forked(storage: Storage) -> None:
    queue, gate = storage.queue("work", type=int), storage.gate("sale")

    def work() -> None:
        queue.put_blocking(2)
        gate.open_blocking(by="child")
        gate.wait_blocking(timeout=10)

    queue.put_blocking(1)
    assert gate.read_blocking().epoch == 0
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(30)
    is_alive = child.is_alive()
    child.kill()
    child.join()
    assert not is_alive
    assert child.exitcode == 0
    assert gate.read_blocking().epoch == 1
    queue.put_blocking(3)
    assert storage.portal.call(queue.depth) == 3
