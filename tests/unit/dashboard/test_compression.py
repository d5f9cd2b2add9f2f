"""Promises of compression: pages are sent compressed, their length tells no secret, and tags stay what they were."""

from __future__ import annotations

import gzip

import pytest
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from dashboard.core import tokens
from dashboard.core.middleware import Compressed
from dashboard.models import Scope

pytestmark = pytest.mark.django_db
ASKS = {"accept-encoding": "gzip"}


@pytest.fixture
def vera(client: Client) -> Client:
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    return client


def test_a_page_is_sent_compressed_to_who_asks_for_it(vera: Client) -> None:
    plain, packed = vera.get("/help/"), vera.get("/help/", headers=ASKS)
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["Vary"]
    assert len(packed.content) < len(plain.content) / 2
    assert b"<h1" in gzip.decompress(packed.content)


def test_the_length_of_a_page_differs_from_answer_to_answer(vera: Client) -> None:
    lengths = {len(vera.get("/help/", headers=ASKS).content) for _ in range(12)}
    assert len(lengths) > 1, "a guess that is right would show in the length"


def test_a_file_is_compressed_as_it_streams(vera: Client) -> None:
    answer = vera.get("/tables/queues.csv", headers=ASKS)
    assert answer.status_code == 200


def test_an_answer_with_a_weak_tag_is_compressed_and_keeps_it(client: Client) -> None:
    headers = {**ASKS, "authorization": f"Bearer {tokens.create('ci', scope=Scope.READ, role='viewer')}"}
    answer = client.get("/api/v1/fleet", headers=headers)
    assert answer.status_code == 200, answer.content
    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.headers["ETag"].startswith("W/")


@pytest.mark.parametrize(("tag", "is_packed"), [('"e7-abc"', False), ('W/"abc"', True)])
def test_only_an_answer_whose_tag_is_sent_back_to_change_it_stays_as_it_is(tag: str, is_packed: bool) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("x" * 1000, content_type="application/json", headers={"ETag": tag})

    answer = Compressed(view)(RequestFactory().get("/api/v1/gates/sale", headers=ASKS))
    assert ("Content-Encoding" in answer.headers) is is_packed
    assert answer.headers["ETag"] == tag


@pytest.mark.parametrize(
    "path", ["/static/js/live.js", "/static/css/base.css", "/static/idiomorph/idiomorph-ext.js"]
)
def test_a_static_file_is_sent_compressed_and_only_once(client: Client, path: str) -> None:
    plain, packed = client.get(path), client.get(path, headers=ASKS)
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.getvalue()) == plain.getvalue()
    again = client.get(path, headers={**ASKS, "if-modified-since": packed.headers["Last-Modified"]})
    assert again.status_code == 304
    part = client.get(path, headers={**ASKS, "range": "bytes=0-99"})
    assert (part.status_code, len(part.getvalue())) == (206, 100)
