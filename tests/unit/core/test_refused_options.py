"""Options out of bounds are refused when they are given, by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from coordinator.config import StorageConfig, check_blob, check_container
from coordinator.errors import ConfigurationError
from coordinator.queues.bounds import check_options, check_time_out

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
