"""Promises of saved views: one's own, by name, and nothing but pages of this dashboard."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from dashboard.models import SavedView
from dashboard.overview import saved_views

pytestmark = pytest.mark.django_db
DEEP = "/queues/?q=orders&sort=depth"


def signed_in(name: str) -> Client:
    user = User.objects.create_user(name)
    user.groups.add(Group.objects.get(name="viewer"))
    client = Client()
    client.force_login(user)
    return client


def save(client: Client, name: str, address: str) -> str:
    return client.post(reverse("saved-views"), {"name": name, "address": address}, follow=True).text


def test_a_view_is_saved_found_replaced_and_removed_by_its_owner_alone() -> None:
    vera, olga = signed_in("vera"), signed_in("olga")
    assert 'value="/queues/?q=orders&amp;sort=depth"' in vera.get(reverse("saved-views"), {"at": DEEP}).text
    assert "View Deep orders saved." in save(vera, "Deep  orders", DEEP)
    save(vera, "Deep orders", DEEP + "&after=x")
    view = SavedView.objects.get()
    assert view.address == DEEP + "&after=x"
    found = vera.get(reverse("search"), {"q": "deep", "list": "1"}).text
    assert "/queues/?q=orders&amp;sort=depth&amp;after=x" in found
    assert vera.get(reverse("search"), {"q": "deep"})["Location"] == view.address
    assert "Deep orders" not in olga.get(reverse("saved-views")).text
    assert "Deep" not in olga.get(reverse("search"), {"q": "deep", "list": "1"}).text.replace("“deep”", "")
    olga.post(reverse("saved-views"), {"remove": view.pk})
    assert SavedView.objects.count() == 1
    vera.post(reverse("saved-views"), {"remove": view.pk})
    assert SavedView.objects.count() == 0


@pytest.mark.parametrize(
    "address",
    ["", "//evil.example/queues/", "https://evil.example/queues/", "/\\evil.example", "queues/", "/nowhere/",
     "javascript:alert(1)", "/accounts/logout/", "/queues/orders-in/clear", "/queues.csv", "/queues/" + "x" * 2000],
)  # fmt: skip
def test_an_address_that_is_no_page_is_not_offered_and_not_saved(address: str) -> None:
    vera = signed_in("vera")
    assert 'name="address"' not in vera.get(reverse("saved-views"), {"at": address}).text
    assert "nothing was saved" in save(vera, "evil", address)
    assert not SavedView.objects.exists()


def test_a_view_has_a_name_and_a_person_a_bounded_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "MOST", 2)
    vera = signed_in("vera")
    assert "Give the view a name" in save(vera, "  ", DEEP)
    for name in ("a", "b"):
        save(vera, name, DEEP)
    assert "2 saved views" in save(vera, "c", DEEP)
    assert "saved." in save(vera, "b", "/audit/?q=gate.open")
    assert list(SavedView.objects.values_list("name", flat=True)) == ["a", "b"]
