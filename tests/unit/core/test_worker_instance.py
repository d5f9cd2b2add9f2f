"""Each process shows the hub an instance and a secret of its own."""

import os

import pytest

from coordinator import Worker
from coordinator.errors import ConfigurationError

ENVIRON = {
    "AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true",
    "KENNEL_HUB_URL": "ws://127.0.0.1:1/ws/workers/",
    "KENNEL_WORKER_TOKEN": "kw_0123456789_0123456789",
}


def test_a_forked_process_has_an_instance_and_a_secret_of_its_own(monkeypatch):
    worker = Worker("billing", environ=ENVIRON)
    before, again = worker._hello(), worker._hello()
    assert (before.instance, before.secret) == (again.instance, again.secret)
    assert len(before.secret) >= 32
    monkeypatch.setattr(os, "getpid", lambda: before.pid + 1)
    forked = worker._hello()
    assert forked.pid == before.pid + 1
    assert before.instance != forked.instance == worker.instance
    assert before.secret != forked.secret


@pytest.mark.parametrize("identity", ["node\n7", "x" * 201, "\ud800"])
def test_an_identity_that_no_frame_can_carry_is_refused_at_once(identity):
    with pytest.raises(ConfigurationError, match="worker identity"):
        Worker("billing", identity=identity, environ=ENVIRON)
