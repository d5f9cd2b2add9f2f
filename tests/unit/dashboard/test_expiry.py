"""Promises of the dashboard's database: no table grows for ever."""

from __future__ import annotations

import datetime
import time

import pytest
from django.apps import apps
from django.contrib.sessions.models import Session
from django.utils import timezone

from dashboard.accounts import sign_in as signing_in
from dashboard.api.v1 import idempotency as replays
from dashboard.core import tokens
from dashboard.core.retention import BOUNDS, remove_expired
from dashboard.live import history
from dashboard.models import ApiAnswer, Chunk, Series, SignInTries, WorkerToken

DAY = datetime.timedelta(days=1)


def test_of_every_table_is_said_what_bounds_it() -> None:
    there = {f"{model._meta.app_label}.{model.__name__}" for model in apps.get_models()}
    assert there == set(BOUNDS)


@pytest.mark.django_db
def test_sessions_end_and_dead_tokens_go_after_a_quarter_of_a_year_and_nothing_else() -> None:
    now = timezone.now()
    Session.objects.create(session_key="ended", session_data="", expire_date=now - DAY)
    Session.objects.create(session_key="alive", session_data="", expire_date=now + DAY)
    for name, days in (("lately", 89), ("long-ago", 91)):
        tokens.create(f"revoked-{name}")
        WorkerToken.objects.filter(name=f"revoked-{name}").update(revoked_at=now - days * DAY)
        tokens.create(f"expired-{name}")
        WorkerToken.objects.filter(name=f"expired-{name}").update(expires_at=now - days * DAY)
    tokens.create("in-use")
    assert remove_expired() == 3
    assert remove_expired() == 0
    assert list(Session.objects.values_list("session_key", flat=True)) == ["alive"]
    assert set(WorkerToken.objects.values_list("name", flat=True)) == {
        "revoked-lately", "expired-lately", "in-use",
    }  # fmt: skip


@pytest.mark.django_db
def test_wrong_tries_of_long_ago_go_with_the_next_one() -> None:
    SignInTries.objects.create(key="old", tries=3, last_at=time.time() - signing_in.FORGET_SECONDS - 1)
    SignInTries.objects.create(key="lately", tries=3, last_at=time.time() - 1)
    signing_in.AttemptLimits((("new", 5),)).reserve()
    assert set(SignInTries.objects.values_list("key", flat=True)) == {"lately", "new"}


@pytest.mark.django_db
def test_answers_kept_for_repeated_writes_go_with_the_next_one() -> None:
    for key, age in (("old", replays.KEPT_SECONDS + 1), ("lately", 1)):
        ApiAnswer.objects.create(key=key, content="x", status=200, at=time.time() - age)
    replays._begin("new", "x")
    assert set(ApiAnswer.objects.values_list("key", flat=True)) == {"lately", "new"}


@pytest.mark.django_db(transaction=True)
async def test_history_goes_by_the_age_of_its_level_and_series_with_their_last_chunk() -> None:
    recorder, now = history.Recorder(), time.time()
    for seconds, _, kept in history.LEVELS:
        recorder.add(now - kept - 2 * 3600, {f"depth:old-{seconds}": 1.0})
    recorder.add(now, {"depth:new": 1.0})
    await recorder.flush()
    recorder._pruned = recorder._swept = -1e9
    recorder.add(now + 1, {"depth:new": 2.0})
    await recorder.flush()
    levels = {(name, res) async for name, res in Chunk.objects.values_list("series__name", "resolution")}
    assert {res for name, res in levels if name == "depth:new"} == {1, 10, 60}
    # The month's level keeps all that is younger than a month.
    assert {name for name, _ in levels} == {"depth:new", "depth:old-1", "depth:old-10"}
    assert {name async for name in Series.objects.values_list("name", flat=True)} == {
        name for name, _ in levels
    }
