"""Options out of bounds are refused when they are given, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from coordinator import Storage
from coordinator.backoff import Backoff
from coordinator.config import StorageConfig, check_blob, check_container
from coordinator.errors import ConfigurationError
from coordinator.leadership.every import run_every
from coordinator.leadership.semaphore import BlobDistributedSemaphore
from coordinator.queues.listener import check_options, check_time_out
from coordinator.queues.queue import QueueConfig
from coordinator.queues.rules import Steps, TargetLatency
from coordinator.scaling.policy import ScalingPolicy, Window
from coordinator.tables.rows import MAX_BYTES, chunk_columns

GOOD: dict[str, Any] = {
    "tasks": range(51),
    "slots": 1,
    "batch": 0,
    "visibility_seconds": 30.0,
    "weights": [1],
}


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("tasks", range(5, 5), "give the fewest and the most"),
        ("tasks", range(1), "give the fewest and the most"),
        ("tasks", range(-1, 5), "give the fewest and the most"),
        ("tasks", range(0, 10, 2), "give the fewest and the most"),
        ("tasks", range(1_000_002), "at most 1,000,000 handlers"),
        ("slots", 0, "slots must be at least 1"),
        ("batch", -1, "batch at least 0"),
        ("visibility_seconds", 0.5, "visibility_seconds must be 1 to 604,800"),
        ("visibility_seconds", 604_801.0, "visibility_seconds must be 1 to 604,800"),
        ("visibility_seconds", float("nan"), "visibility_seconds must be 1 to 604,800"),
        ("weights", [3, 0], "a queue's weight must be at least 1, got 0"),
    ],
)
def test_a_listener_refuses_what_is_out_of_bounds(option: str, value: Any, words: str) -> None:
    check_options(**GOOD)
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        check_options(**(GOOD | {option: value}))


@pytest.mark.parametrize("timeout", [0.0, -1.0, 2_592_001.0, float("nan")])
def test_a_time_out_of_a_message_has_bounds(timeout: float) -> None:
    check_time_out(None, 0.0)
    check_time_out(2_592_000.0, 604_800.0)
    with pytest.raises(ConfigurationError, match="timeout must be more than 0"):
        check_time_out(timeout, 0.0)


@pytest.mark.parametrize("linger", [-0.1, 604_801.0, float("nan")])
def test_the_time_to_linger_has_bounds(linger: float) -> None:
    with pytest.raises(ConfigurationError, match="linger_seconds must be 0 to 604,800"):
        check_time_out(None, linger)


@pytest.mark.parametrize("field", ["connect_seconds", "read_seconds"])
@pytest.mark.parametrize("value", [0.0, 301.0])
def test_the_time_outs_of_a_request_have_bounds(field: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} must be between 0.05 and 300 seconds"):
        StorageConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ab", "Upper", "two--dashes", "-edge", "edge-", "x" * 64])
def test_a_container_the_service_would_refuse_is_refused(name: str) -> None:
    assert check_container("") == "" and check_container("good-name") == "good-name"
    with pytest.raises(ConfigurationError, match="use 3-63 lower-case letters"):
        check_container(name)


@pytest.mark.parametrize("name", ["x" * 1025, "dot.", "slash/", "new\nline", "back\\slash"])
def test_a_blob_the_service_would_refuse_is_refused(name: str) -> None:
    assert check_blob("Orders/2026") == "Orders/2026"
    with pytest.raises(ConfigurationError, match="use 1-1024 printable characters"):
        check_blob(name)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Backoff(base_seconds=0), "back-off needs 0 < base_seconds <= cap_seconds"),
        (lambda: Backoff(base_seconds=2, cap_seconds=1), "back-off needs 0 < base_seconds <= cap_seconds"),
        (lambda: Backoff(deadline_seconds=0), "deadline_seconds must be positive"),
        (lambda: QueueConfig(items_per_message=0), "items_per_message must be 1-1000, got 0"),
        (lambda: QueueConfig(items_per_message=1001), "items_per_message must be 1-1000, got 1001"),
        (lambda: QueueConfig(write_seconds=0), "write_seconds must be positive"),
        (lambda: QueueConfig(max_payload_bytes=10), "max_payload_bytes must be at least"),
        (lambda: Steps(steps=((100, 1), (50, 2))), "the steps' depths must rise from 1 up, got [100, 50]"),
        (lambda: Steps(steps=((0, 1),)), "the steps' depths must rise from 1 up, got [0]"),
        (lambda: Steps(steps=((10, -1),)), "a step's tasks must be 0 or more"),
        (lambda: Steps(beyond=0), "beyond at least 1"),
        (lambda: TargetLatency(seconds=0.01), "the target must be 0.1 s to a day"),
        (
            lambda: TargetLatency(seconds=1, minimum=5, maximum=4),
            "needs 0 <= minimum <= maximum, got 5 and 4",
        ),
        (lambda: TargetLatency(seconds=1, up_seconds=-1), "cool-downs must not be negative"),
        (lambda: Window(start="8:30", end="17:00", minimum=1), "window start '8:30': use HH:MM"),
        (lambda: Window(start="08:30", end="25:00", minimum=1), "window end '25:00': use HH:MM"),
        (lambda: Window(start="08:30", end="17:00", days=("noday",), minimum=1), "window days ['noday']"),
        (lambda: Window(start="08:30", end="17:00"), "a window needs a minimum or a maximum"),
        (lambda: Window(start="08:30", end="17:00", minimum=3, maximum=2), "0 <= minimum <= maximum, got 3"),
        (lambda: ScalingPolicy(minimum=11), "a policy needs 0 <= minimum <= maximum, got 11 and 10"),
        (lambda: ScalingPolicy(step_seconds=0), "step_seconds must be positive, got 0"),
        (lambda: ScalingPolicy(cpu_high=1.5), "0 < cpu_high <= 1"),
        (lambda: ScalingPolicy(step_seconds=500), "step_seconds must not be longer than cooldown_seconds"),
        (lambda: ScalingPolicy(time_zone="Mars/Olympus"), "time zone 'Mars/Olympus': use an IANA name"),
        (lambda: chunk_columns("result", bytes(MAX_BYTES + 1)), f"result: {MAX_BYTES + 1} bytes do not fit"),
        (
            lambda: BlobDistributedSemaphore("printers", [], _nothing, identity="a", bus=_nothing),
            "semaphore printers needs at least one place",
        ),
    ],
)
def test_what_could_never_work_is_refused_when_it_is_made(made: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        made()


def _nothing() -> Any:
    raise AssertionError("what was refused asks for nothing")


async def test_a_campaign_for_no_job_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="run_every needs at least one job"):
        await run_every(_nothing, [], _nothing)  # type: ignore[arg-type]


FORMS: dict[str, Callable[..., Any]] = {
    "sequence": lambda storage, **where: storage.sequence("orders", **where),
    "gate": lambda storage, **where: storage.gate("orders", **where),
    "flag": lambda storage, **where: storage.flag("orders", **where),
    "election": lambda storage, **where: storage.election("orders", **where),
    "mutex": lambda storage, **where: storage.mutex("orders", **where),
    "semaphore": lambda storage, **where: storage.semaphore("orders", 2, **where),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_rule_names_the_container_and_the_blob_of_every_form(form: str) -> None:
    storage = Storage.from_connection_string("UseDevelopmentStorage=true")
    FORMS[form](storage, container="uniqueids", blob="jobs/My.File dat")
    for wrong in (
        {"container": "Not A Container"},
        {"container": "a--b"},
        {"blob": "ends with."},
        {"blob": "a\\b"},
    ):
        storage = Storage.from_connection_string("UseDevelopmentStorage=true")
        with pytest.raises(ConfigurationError, match=re.escape(f"{next(iter(wrong.values()))!r}: use")):
            FORMS[form](storage, **wrong)
