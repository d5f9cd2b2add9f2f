"""Promises of the prices and the daily budget that operators put in force."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from coordinator.cost import DEFAULT_PRICES, Prices
from dashboard.core import prices as pricing
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.permissions import Actor
from dashboard.core.prices import PriceSettings
from dashboard.cost.actions import set_prices
from dashboard.models import AuditRow, Pricing

pytestmark = pytest.mark.django_db

FORM = {
    "queue": "0.005", "blob_write": "0.06", "blob_read": "0.005", "blob_list": "0.06", "table": "0.0004", "blob_other": "0.005", "instance_hour": "0.12",
    "as_of": "2026-11", "source": "our contract", "per_day": "2.50", "reason": "new contract",
}  # fmt: skip
CHANGED = Prices(
    0.005, 0.06, 0.005, 0.06, 0.0004, "2026-11", "our contract", blob_other=0.005, instance_hour=0.12
)


def _signed_in(role: str = "operator") -> Client:
    client = Client()
    user = User.objects.create_user(f"{role}-1")
    user.groups.add(Group.objects.get(name=role))
    client.force_login(user)
    return client


def _service(client: Client, method: str, body: dict[str, Any] | None = None) -> Any:
    return client.generic(
        method, "/api/v1/cost/prices", json.dumps(body or {}).encode(), content_type="application/json"
    )


def test_an_operator_changes_them_and_takes_it_back_and_the_audit_tells_from_what_to_what(
    settings: Any,
) -> None:
    settings.DAILY_BUDGET = 9.0
    client = _signed_in()
    assert "Using the defaults." in client.get("/cost/").content.decode()
    assert client.post("/cost/prices", FORM).status_code == 302
    assert (pricing.current_prices().prices, pricing.current_prices().per_day) == (CHANGED, 2.5)
    page = client.get("/cost/").content.decode()
    assert "Prices saved by operator-1" in page
    assert "Prices as of 2026-11 (our contract)" in page
    row = AuditRow.objects.get(action="cost.prices", outcome="done")
    assert json.loads(row.before)["per_day"] == 9.0
    assert json.loads(row.before)["prices"]["queue"] == DEFAULT_PRICES.queue
    assert json.loads(row.after)["prices"]["source"] == "our contract"
    assert client.post("/cost/prices", {"reset": "1"}).status_code == 302
    assert (pricing.current_prices().prices, pricing.current_prices().per_day) == (DEFAULT_PRICES, 9.0)
    assert not Pricing.objects.exists()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("queue", "0,004", "Queue operations: &#x27;0,004&#x27; is not a number"),
        ("queue", "", "is not a number"),
        ("blob_write", "-1", "the price of blob_write must be 0 to 1,000"),
        ("table", "nan", "the price of table must be 0 to 1,000"),
        ("instance_hour", "-1", "the price of an instance must be 0 to 1,000 an hour"),
        ("instance_hour", "dime", "Instance hour: &#x27;dime&#x27; is not a number"),
        ("source", " ", "the source of the prices"),
        ("per_day", "0", "more than 0"),
        ("per_day", "inf", "at most 1,000,000 dollars"),
        ("per_day", "nan", "more than 0"),
    ],
)
def test_what_is_no_price_is_refused_with_what_is_wrong_and_what_was_typed_stays(
    field: str, value: str, said: str
) -> None:
    answer = _signed_in().post("/cost/prices", FORM | {field: value})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert said in page
    assert 'value="our contract"' in page or field == "source"
    assert not Pricing.objects.exists()


def test_viewers_see_them_and_change_nothing() -> None:
    client = _signed_in("viewer")
    page = client.get("/cost/").content.decode()
    assert "Only operators and admins can change prices and budget." in page
    assert "/cost/prices" not in page
    with pytest.raises(Denied):
        set_prices(Actor("vera", "viewer"), PriceSettings(CHANGED))
    assert AuditRow.objects.get(actor="vera").outcome == "denied"
    assert not Pricing.objects.exists()


def test_a_budget_that_is_none_is_refused_by_the_act_itself_and_in_the_audit() -> None:
    with pytest.raises(ActionFailed, match="more than 0"):
        set_prices(Actor("olga", "operator"), PriceSettings(CHANGED, -1.0))
    with pytest.raises(ActionFailed, match="more than 200 characters"):
        set_prices(Actor("olga", "operator"), PriceSettings(Prices(source="x" * 201)))
    assert AuditRow.objects.filter(actor="olga", outcome="failed").count() == 2


def test_programs_change_them_too() -> None:
    client = _signed_in()
    found = _service(client, "GET").json()
    assert (found["by"], found["prices"]["queue"]) == ("", DEFAULT_PRICES.queue)
    body = {"prices": {"queue": 0.006, "as_of": "2026-12"}, "per_day": 3}
    answer = _service(client, "PUT", body)
    assert (answer.status_code, answer.json()["prices"]["queue"]) == (200, 0.006)
    assert client.get("/api/v1/cost").json()["prices"]["as_of"] == "2026-12"
    assert _service(client, "GET").json()["by"] == "operator-1"
    assert _service(client, "PUT", {"prices": {"queue": -1}}).status_code == 422
    assert _service(client, "PUT", {"prices": {"egress": 1}}).status_code == 422
    assert _service(client, "DELETE").json()["prices"]["queue"] == DEFAULT_PRICES.queue
    assert _service(client, "GET").json()["at"] is None


def test_what_another_version_stored_does_not_take_the_pages_away() -> None:
    Pricing.objects.create(pk=1, prices='{"queue": 0.007, "egress": 1}', per_day=None, by="adam", at=1.0)
    assert pricing.refresh().prices == DEFAULT_PRICES
    Pricing.objects.update(prices='{"queue": 0.007}')
    assert pricing.refresh().prices.queue == 0.007


def test_who_saves_a_budget_does_not_keep_the_list_prices_of_that_day(settings: Any) -> None:
    client = _signed_in()
    usual = {name: str(getattr(DEFAULT_PRICES, name)) for name in FORM if hasattr(DEFAULT_PRICES, name)}
    assert client.post("/cost/prices", {**usual, "table": "0.00036", "per_day": "5"}).status_code == 302
    assert json.loads(Pricing.objects.get().prices) == {}
    settings.PRICES = '{"queue": 0.0123, "as_of": "2027-01", "source": "the new list"}'
    now = pricing.refresh()
    assert (now.per_day, now.prices.queue, now.prices.as_of) == (5.0, 0.0123, "2027-01")
    assert client.post("/cost/prices", {**usual, "queue": "0.02", "per_day": ""}).status_code == 302
    settings.PRICES = '{"blob_list": 0.07}'
    now = pricing.refresh()
    assert (now.prices.queue, now.per_day) == (0.02, None)
