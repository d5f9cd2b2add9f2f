"""How often one may ask, for all processes together; and what an Idempotency-Key does when things go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache
from django.test import Client
from redis import RedisError

from dashboard.api.v1 import idempotency as replays
from dashboard.api.v1 import throttling as limits
from dashboard.api.v1.problems import Refusal
from dashboard.core import tokens
from dashboard.hub import runtime
from dashboard.models import ApiAnswer, AuditRow, Scope
from tests.support.ports import free_port

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _own_counts(settings: Any) -> Iterator[None]:
    settings.API_LIMITS = {"reads": 3, "writes": 2, "refused": 2}
    settings.STORAGE_ENV = {}  # and no storage that an earlier test of this process asked for
    runtime.use(None)
    caches["default"].clear()
    yield
    runtime.use(None)


@pytest.fixture
def operator() -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens.create('ci', scope=Scope.ACT, role='operator')}"}


def _until_refused(client: Client, headers: dict[str, str]) -> list[Any]:
    """Answers up to the first 429. A new minute may begin in between, so the number is bounded, not exact."""
    answers = []
    for _ in range(20):
        answers.append(client.get("/api/v1/attention", headers=headers))
        if answers[-1].status_code == 429:
            break
    return answers


def test_a_caller_who_asks_too_often_is_told_when_to_come_back(
    client: Client, operator: dict[str, str]
) -> None:
    *good, refused = _until_refused(client, operator)
    assert refused.status_code == 429
    assert 3 <= len(good) <= 6
    assert [each.status_code for each in good] == [200] * len(good)
    assert good[0]["RateLimit-Limit"] == "3"
    assert good[0]["RateLimit-Remaining"] == "2"
    assert 1 <= int(good[0]["RateLimit-Reset"]) <= 60
    assert refused["RateLimit-Remaining"] == "0"
    assert refused["Retry-After"] == refused["RateLimit-Reset"]
    assert "try again in" in refused.json()["detail"]
    # Reads of one caller say nothing of their writes, nor of what others may read.
    other = {"Authorization": f"Bearer {tokens.create('other', scope=Scope.READ)}"}
    assert client.get("/api/v1/attention", headers=other).status_code == 200
    assert client.post("/api/v1/gates", b"{}", "application/json", headers=operator).status_code == 422


def test_who_tries_tokens_is_slowed_down_by_address(client: Client) -> None:
    statuses = [
        client.get("/api/v1/attention", headers={"Authorization": f"Bearer ks_{n}"}).status_code
        for n in range(10)
    ]
    assert statuses[:2] == [401, 401]
    assert 429 in statuses


def test_processes_count_together_in_redis(redis_url: str) -> None:
    one, other = RedisCache(redis_url, {}), RedisCache(redis_url, {})
    key = f"test-{time.time_ns()}"
    assert [limits._count_in(cache, key) for cache in (one, other, one, other)] == [1, 2, 3, 4]


def test_errors_of_redis_are_known_where_it_is_used_and_its_library_is_not_loaded_elsewhere() -> None:
    program = "import sys; from dashboard import settings as s; print(s.CACHE_AWAY, 'redis' in sys.modules)"
    for url, said in (
        ("", "() False"),
        ("redis://nowhere/0", "(<class 'redis.exceptions.RedisError'>,) True"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"REDIS_URL": url},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == said


def test_a_process_counts_for_itself_while_redis_is_away(settings: Any) -> None:
    settings.CACHE_AWAY = (RedisError,)
    settings.CACHES = settings.CACHES | {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": f"redis://127.0.0.1:{free_port()}/0",
        }
    }
    caches["local"].clear()
    limits.spend("somebody", "writes")

    def spend_on() -> None:
        for _ in range(5):
            limits.spend("somebody", "writes")

    with pytest.raises(Refusal) as refused:
        spend_on()
    assert refused.value.status == 429


def test_a_repetition_while_the_first_is_under_way_waits_and_after_a_crash_is_unknown(
    client: Client, operator: dict[str, str]
) -> None:
    headers = operator | {"Idempotency-Key": "key-1"}

    def close() -> Any:
        return client.post(
            "/api/v1/gates/start-it/close", b'{"reason": "x"}', "application/json", headers=headers
        )

    first = close()
    assert close().content == first.content  # even that it could not be done is told again
    rows = AuditRow.objects.count()
    # As a process leaves it that was killed between the key and the answer.
    ApiAnswer.objects.update(status=0, body="")
    caches["default"].clear()
    waiting = close()
    assert (waiting.status_code, waiting["Retry-After"]) == (409, "1")
    ApiAnswer.objects.update(at=time.time() - replays.UNDER_WAY_SECONDS - 1)
    caches["default"].clear()
    unknown = close()
    assert (unknown.status_code, unknown.json()["outcome"]) == (409, "unknown")
    assert AuditRow.objects.count() == rows


def test_keys_are_forgotten_after_a_day(client: Client, operator: dict[str, str]) -> None:
    ApiAnswer.objects.create(key="old", content="", status=200, body="{}", at=time.time() - 86_401)
    ApiAnswer.objects.create(key="new", content="", status=200, body="{}", at=time.time() - 80_000)
    headers = operator | {"Idempotency-Key": "another"}
    client.post("/api/v1/workers/i-1/drain", b"{}", "application/json", headers=headers)
    assert not ApiAnswer.objects.filter(key="old").exists()
    assert ApiAnswer.objects.filter(key="new").exists()
