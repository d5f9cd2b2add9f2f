"""Promises of the JSON that programs read, and of history as it is kept."""

from __future__ import annotations

import json
import time

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group, User
from django.test import Client
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dashboard.api.metrics import FleetCollector
from dashboard.api.v1 import idempotency
from dashboard.api.v1.api import api
from dashboard.api.v1.bodies import FORMS
from dashboard.core import tokens
from dashboard.live.fleet import Fleet, Headline, QueueView, StorageView
from dashboard.live.history import LEVELS, Recorder
from dashboard.models import Chunk, Scope
from dashboard.pages import queries as selectors

from .making import worker

pytestmark = pytest.mark.django_db

PATHS = ["/metrics", "/api/v1/fleet", "/api/v1/attention", "/api/v1/history?series=workers"]


@pytest.fixture
def reader() -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens.create('prometheus', scope=Scope.READ)}"}


@pytest.mark.parametrize("path", PATHS)
def test_reading_needs_a_role_or_a_token_that_is_for_reading(
    client: Client, reader: dict[str, str], path: str
) -> None:
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"Authorization": "Bearer kw_wrong"}).status_code == 401
    worker = tokens.create("worker")
    assert client.get(path, headers={"Authorization": f"Bearer {worker}"}).status_code == 401
    assert client.get(path, headers=reader).status_code == 200
    user = User.objects.create_user("somebody")
    client.force_login(user)
    assert client.get(path).status_code == 403
    user.groups.add(Group.objects.get(name="viewer"))
    assert client.get(path).status_code == 200
    assert client.post(path).status_code == 405


def test_an_error_says_what_to_do(client: Client, reader: dict[str, str]) -> None:
    refused = client.get("/api/v1/fleet")
    assert refused["Content-Type"] == "application/problem+json"
    assert "--scope read" in refused.json()["detail"]
    wrong = client.get("/api/v1/history?series=x&seconds=lots", headers=reader)
    assert (wrong.status_code, wrong.json()["errors"][0]["where"]) == (422, "query.seconds")


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("gates/start-it/open", {"reason": "\x00"}, "body.body.reason: must not contain the character NUL"),
        (
            "gates/start-it/close",
            {"reason": "a\x01b"},
            "body.body.reason: must not contain control characters",
        ),
        (
            "gates/start-it/close",
            {"reason": "\u202eb"},
            "body.body.reason: must not contain control characters",
        ),
        ("gates/Start_It/open", {}, "path.name: must be lower-case letters, digits and single dashes"),
        ("gates", {"name": "a--b"}, "body.body.name: must be lower-case letters, digits and single dashes"),
        ("workers/a b/drain", {}, "path.instance: must be letters, digits,"),
        ("tokens", {"name": " ", "scope": "worker"}, "body.body.name: must not be blank"),
        (
            "tokens",
            {"name": "x", "scope": "worker", "allowance": {"workers": "a/b"}},
            "body.body.allowance.workers: must be names with * and ?",
        ),
    ],
)
def test_what_does_not_match_a_pattern_is_said_in_words(
    client: Client, path: str, body: dict[str, object], said: str
) -> None:
    token = tokens.create("deploys", scope=Scope.ACT, role="admin")
    answer = client.post(
        f"/api/v1/{path}",
        body,
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(said)
    assert "pattern" not in answer.content.decode() and "regex" not in answer.content.decode()


def test_every_pattern_of_the_api_has_its_words() -> None:
    def patterns(part: object) -> set[str]:
        if isinstance(part, dict):
            own = {part["pattern"]} if isinstance(part.get("pattern"), str) else set()
            return own.union(*(patterns(each) for each in part.values()))
        return set().union(*(patterns(each) for each in part)) if isinstance(part, list) else set()

    schema = api.get_openapi_schema(path_prefix="/api/v1/")
    assert patterns(json.loads(json.dumps(schema))) <= FORMS.keys() | {idempotency.PATTERN}


def test_metrics_leave_out_what_is_unknown() -> None:
    fleet = Fleet(
        taken_at=1.0,
        headline=Headline("unknown", ""),
        storage=StorageView(),
        queues=(QueueView("known", depth=3, poison=0, as_of=1.0), QueueView("unknown")),
    )
    registry = CollectorRegistry()
    registry.register(FleetCollector(fleet))
    text = generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {s.labels["queue"]: s.value for s in families["kennel_queue_depth"].samples} == {"known": 3.0}
    assert families["kennel_storage_up"].samples[0].value == 0.0
    assert "kennel_sampled_timestamp_seconds" not in families


@pytest.mark.django_db(transaction=True)
async def test_history_is_kept_in_three_levels_and_read_from_the_finest_that_reaches_back() -> None:
    recorder, now = Recorder(), time.time()
    for ago in range(3000, 0, -1):
        recorder.add(now - ago, {"depth:orders-in": float(ago)})
    await recorder.flush()
    await recorder.flush()

    def look() -> tuple[int, int, list[float | None]]:
        return (
            len(selectors.history("depth:orders-in", 1000)),
            len(selectors.history("depth:orders-in", 20_000)),
            [p.value for p in selectors.history("depth:orders-in", 100)],
        )

    fine, coarse, values = await sync_to_async(look)()
    assert 998 <= fine <= 1000
    assert 299 <= coarse <= 302
    assert values == sorted((v for v in values if v is not None), reverse=True)


@pytest.mark.django_db(transaction=True)
async def test_history_older_than_its_level_keeps_is_removed() -> None:
    recorder, now = Recorder(), time.time()
    for seconds, _, kept in LEVELS:
        recorder.add(now - kept - 100 * seconds * 60, {"workers": 1.0})
    recorder.add(now, {"workers": 1.0})
    await recorder.flush()
    oldest = await sync_to_async(
        lambda: list(Chunk.objects.order_by("start").values_list("resolution", "start"))
    )()
    kept_for = {seconds: kept + seconds * size for seconds, size, kept in LEVELS}
    assert all(start >= now - kept_for[seconds] - 1 for seconds, start in oldest)
    assert {seconds for seconds, _ in oldest} == {1, 10, 60}


def test_workers_are_filtered_and_paged_in_the_fleet_and_in_their_list(
    client: Client, reader: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = (worker("a-1"), worker("a-2", presence="lost"), worker("a-3"), worker("b-1"))
    fleet = Fleet(taken_at=1.0, headline=Headline("idle", ""), storage=StorageView(), workers=workers)
    monkeypatch.setattr(selectors, "fleet", lambda: fleet)

    def get(path: str, key: str) -> tuple[list[str], str | None]:
        answer = client.get(f"/api/v1/{path}", headers=reader)
        assert answer.status_code == 200, answer.content
        body = answer.json()
        return [each["name"] for each in body[key]], body.get("next")

    assert get("fleet", "workers") == (["a-1", "a-2", "a-3", "b-1"], None)
    assert get("fleet?q=a-&limit=2", "workers") == (["a-1", "a-2"], "i-a-2")
    assert get("fleet?q=a-&limit=2&cursor=i-a-2", "workers") == (["a-3"], None)
    assert get("fleet?presence=lost", "workers") == (["a-2"], None)
    assert get("workers?q=b", "items") == (["b-1"], None)
    assert get("workers?presence=ok&limit=1", "items") == (["a-1"], "i-a-1")
    assert client.get("/api/v1/fleet?presence=tired", headers=reader).status_code == 422
