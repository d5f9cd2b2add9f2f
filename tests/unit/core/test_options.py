"""Options that are passed on are spelled out: the typed dictionaries name what the functions behind them take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.azure.account import Account, StorageOptions
from coordinator.pipelines.azure import PipelineOptions
from coordinator.pipelines.pipeline import Pipeline
from coordinator.queues.azure import QueueOptions
from coordinator.queues.listener import ListenerOptions, QueueListener
from coordinator.queues.queue import Queue
from coordinator.storage import Storage


def keywords(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("options", "function"), [(ListenerOptions, QueueListener.__init__), (StorageOptions, Account.__init__)]
)
def test_the_typed_options_are_those_of_the_function(options: Any, function: Callable[..., Any]):
    assert set(options.__annotations__) == keywords(function)


def test_each_option_of_a_queue_reaches_it():
    storage = Storage.from_connection_string("UseDevelopmentStorage=true")
    queue: Queue[Any] = storage.queue("orders", version=3, upcasters={2: lambda item: item})
    assert (queue.schema.version, set(queue.schema.upcasters)) == (3, {2})
    bare: Queue[Any] = storage.queue("orders", str, envelope=False, base64=True)
    assert (bare.schema.envelope, bare.schema.base64) == (False, True)
    assert (queue.schema.envelope, queue.schema.base64) == (True, False)
    assert set(QueueOptions.__annotations__) == {"version", "upcasters", "config", "envelope", "base64"}


def test_the_options_of_a_pipeline_are_its_own():
    assert set(PipelineOptions.__annotations__) <= keywords(Pipeline.__init__)
    parts = {"ledger", "reports", "orders", "work", "results", "done", "identity"}
    assert keywords(Pipeline.__init__) - set(PipelineOptions.__annotations__) == parts


def test_each_option_of_a_saga_reaches_it():
    storage = Storage.from_connection_string("UseDevelopmentStorage=true")
    saga = storage.saga("cancel", queue="cancelling", timeout_seconds=60, version="2")
    assert (saga.queue.name, saga.timeout_seconds, saga.version) == ("cancelling", 60, "2")
