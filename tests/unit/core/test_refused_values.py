"""Values that cannot be meant are refused by whoever is given them, with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.azure.account import Account
from coordinator.errors import ConfigurationError
from coordinator.leadership.azure import make_semaphore
from coordinator.queues.polling import IdleBackoff
from coordinator.scaling.local import LocalProcessDriver
from coordinator.storage import Storage
from coordinator.testing.faults import FaultProxy

NOWHERE = "UseDevelopmentStorage=true"


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: IdleBackoff(minimum_seconds=5, maximum_seconds=2), "got 5, 2"),
        (lambda: IdleBackoff(step_seconds=0), "step_seconds must be positive"),
        (lambda: LocalProcessDriver("pool", [], state="/nonexistent"), "needs a command to run"),
        (lambda: Storage.from_connection_string(NOWHERE).sharded_queue("work", shards=0), "shards, not 0"),
        (lambda: Storage.from_connection_string(NOWHERE).sharded_queue("work", shards=10_000), "shards, not 10000"),
        (lambda: make_semaphore(Storage.from_connection_string(NOWHERE), "s", 0, identity="a"), "place"),
    ],
)  # fmt: skip
def test_it_is_refused_when_it_is_given(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        build()


def test_a_proxy_for_faults_needs_endpoints_that_it_can_stand_before() -> None:
    with pytest.raises(ValueError, match="no http blob endpoint"):
        FaultProxy("AccountName=shop;AccountKey=c2VzYW1l")


def test_an_account_is_found_by_its_address_alone() -> None:
    account = Account.from_env({"AZURE_STORAGE_ACCOUNT_URL": "https://shop.blob.core.windows.net"})
    assert account.endpoints.account == "shop"
    assert account.config.prefix == "kennel-"
    with pytest.raises(ConfigurationError, match="AZURE_STORAGE_CONNECTION_STRING"):
        Account.from_env({})
