"""Promises of what a worker's token may claim."""

from __future__ import annotations

import io

import msgspec
import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client

from dashboard.access.token_actions import create_token
from dashboard.core.permissions import (
    NEW,
    USUAL,
    Actor,
    Allowance,
    decode_allowance,
    encode_allowance,
    matches,
)
from dashboard.models import WorkerToken


@pytest.mark.parametrize(
    ("patterns", "name", "covered"),
    [
        ("*", "anything at all", True),
        ("billing-*", "billing-7", True),
        ("billing-*", "shipping-7", False),
        ("billing-* shipping-?", "shipping-7", True),
        ("-", "billing-7", False),
    ],
)
def test_a_pattern_covers_names(patterns: str, name: str, covered: bool) -> None:
    assert matches(patterns, name) is covered


def test_what_is_kept_comes_back_and_the_usual_is_kept_as_nothing() -> None:
    own = Allowance(workers="billing-*", connections=3)
    assert decode_allowance(encode_allowance(own)) == own
    assert (encode_allowance(USUAL), decode_allowance("")) == ("", USUAL)


@pytest.mark.parametrize("kept", ["{", '{"workers": "a\\nb"}', '{"connections": 0}', '{"connexions": 3}'])
def test_an_allowance_that_cannot_be_read_allows_nothing_by_name(kept: str) -> None:
    assert not matches(decode_allowance(kept).workers, "billing-7")
    assert decode_allowance(kept).connections == 1


@pytest.mark.parametrize(
    "fault", [{"per_second": 0}, {"connections": 10**9}, {"gates": ""}, {"queues": "a  b"}]
)
def test_claims_out_of_bounds_are_refused(fault: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fault, Allowance)


def _made() -> Allowance:
    return decode_allowance(WorkerToken.objects.get().allowance)


@pytest.mark.django_db
def test_a_new_token_of_workers_is_for_a_hundred_of_them_and_one_made_before_keeps_what_it_had() -> None:
    call_command("worker_token", "create", "production", stdout=io.StringIO())
    assert _made() == NEW == Allowance(connections=100, instances=400)
    assert decode_allowance("").connections == 1_000


@pytest.mark.django_db
def test_what_is_said_of_a_new_token_counts_and_what_is_left_out_is_tight() -> None:
    create_token(Actor("adam", "admin"), "billing", allowance={"workers": "billing-*"})
    assert _made() == Allowance(workers="billing-*", connections=100, instances=400)


@pytest.mark.django_db
def test_the_api_sets_what_a_token_may_claim_and_access_shows_it(client: Client) -> None:
    adam = User.objects.create_user("adam")
    adam.groups.add(Group.objects.get(name="admin"))
    client.force_login(adam)

    def ask(allowance: dict[str, object]) -> int:
        body = {"name": "billing", "scope": "worker", "allowance": allowance}
        return client.post("/api/v1/tokens", body, content_type="application/json").status_code

    assert ask({"workers": "a\nb"}) == ask({"connections": 0}) == ask({"connexions": 3}) == 422
    assert not WorkerToken.objects.exists()
    assert ask({"workers": "billing-*", "queues": "pay-*", "connections": 7}) == 201
    assert _made() == Allowance(workers="billing-*", queues="pay-*", connections=7, instances=400)
    page = client.get("/access/").content.decode()
    assert "workers billing-*, gates *, queues pay-*" in page
    assert "7 connections, 400 processes" in page
