"""The client of the dashboard's API, against answers that are given here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import requests
from requests.adapters import BaseAdapter

from coordinator.backoff import Backoff
from coordinator.client import Client
from coordinator.errors import ApiError, ApiUnavailable, ConfigurationError

AT_ONCE = Backoff(base_seconds=0.001, cap_seconds=0.001, deadline_seconds=5.0)


class Answers(BaseAdapter):
    """Gives one answer after the other and keeps what was asked."""

    def __init__(self, *answers: tuple[int, Any] | tuple[int, Any, dict[str, str]] | Exception) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[requests.PreparedRequest] = []

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        self.asked.append(request)
        given = self.answers.pop(0)
        if isinstance(given, Exception):
            raise given
        answer = requests.Response()
        answer.request, answer.url, answer.status_code = request, str(request.url), given[0]
        answer._content = given[1] if isinstance(given[1], bytes) else json.dumps(given[1]).encode()
        answer.headers.update(given[2] if len(given) > 2 else {})
        return answer

    def close(self) -> None: ...


@pytest.fixture
def client() -> Client:
    return Client("https://kennel.example.org/api/v1/", "sesame", backoff=AT_ONCE)


def answering(client: Client, *answers: Any) -> Answers:
    adapter = Answers(*answers)
    client._http.mount("https://", adapter)
    return adapter


@pytest.mark.parametrize(
    "url",
    ["kennel.example.org", "ftp://host", "https://", "https://host/?q=1", "https://olga@host"],
)
def test_an_address_that_is_no_api_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError, match="use https://HOST"):
        Client(url, "sesame")


@pytest.mark.parametrize("token", ["", "two words", "schlüssel", "line\nbreak"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigurationError, match="empty or invalid") as caught:
        Client("https://host", token)
    assert not token or token not in str(caught.value)


DONE = {"done": "done", "target": "t", "request_id": "r"}
ACT = {"id": 7, "verb": "read", "messages": "all", "outcome": "done", "done": 3, "left": 0, "total": 3}
GATE = {"name": "g", "state": "open", "epoch": 3}

ACTS: list[tuple[Callable[[Client], Any], Any, str, str]] = [
    (lambda c: c.gate("g"), GATE, "GET", "/gates/g"),
    (lambda c: c.create_gate("g"), GATE, "POST", "/gates"),
    (lambda c: c.open_gate("g"), GATE, "POST", "/gates/g/open"),
    (lambda c: c.close_gate("g", reason="stock"), GATE, "POST", "/gates/g/close"),
    (lambda c: c.queue("q"), {"name": "q"}, "GET", "/queues/q"),
    (lambda c: c.create_queue("q"), DONE, "POST", "/queues"),
    (lambda c: c.delete_queue("q"), DONE, "DELETE", "/queues/q"),
    (lambda c: c.clear_queue("q"), DONE, "POST", "/queues/q/clear"),
    (lambda c: c.put("q", {"n": 1}), DONE, "POST", "/queues/q/messages"),
    (lambda c: c.poison("q"), {"kinds": []}, "GET", "/queues/q/poison"),
    (lambda c: c.read_poison("q"), ACT, "POST", "/queues/q/poison/read"),
    (lambda c: c.retry_poison("q", kind="k"), ACT, "POST", "/queues/q/poison/retry"),
    (lambda c: c.delete_poison("q", error="E"), ACT, "POST", "/queues/q/poison/delete"),
    (lambda c: c.poison_acts("q"), {"acts": [ACT]}, "GET", "/queues/q/poison/acts"),
    (lambda c: c.abort_poison_act("q", 7), DONE, "POST", "/queues/q/poison/acts/7/abort"),
    (lambda c: c.drain_worker("w"), DONE, "POST", "/workers/w/drain"),
    (lambda c: c.resume_worker("w"), DONE, "POST", "/workers/w/resume"),
    (lambda c: c.stop_worker("w"), DONE, "POST", "/workers/w/stop"),
    (lambda c: c.step_down("e/1"), DONE, "POST", "/leaders/e%2F1/step-down"),
    (lambda c: c.break_lease("e"), DONE, "POST", "/leaders/e/break"),
]


@pytest.mark.parametrize(("act", "answer", "method", "path"), ACTS, ids=[path for *_, path in ACTS])
def test_each_method_asks_its_own_address(
    client: Client, act: Callable[[Client], Any], answer: Any, method: str, path: str
) -> None:
    adapter = answering(client, (200, answer))
    act(client)
    [asked] = adapter.asked
    assert (asked.method, str(asked.url).split("?")[0]) == (
        method,
        f"https://kennel.example.org/api/v1{path}",
    )
    assert asked.headers["Authorization"] == "Bearer sesame"
    assert ("Idempotency-Key" in asked.headers) == (method != "GET")


def test_an_act_on_an_epoch_says_which(client: Client) -> None:
    adapter = answering(client, (200, GATE))
    assert client.open_gate("g", epoch=2).epoch == 3
    assert adapter.asked[0].headers["If-Match"] == '"e2"'


@pytest.mark.parametrize("method", ["gates", "queues", "workers", "leaders", "sequences", "audit"])
def test_all_pages_are_read_until_there_is_no_next(client: Client, method: str) -> None:
    adapter = answering(client, (200, {"items": [], "next": "n2"}), (200, {"items": [], "next": None}))
    assert list(getattr(client, method)()) == []
    assert "cursor=n2" in str(adapter.asked[1].url)


def test_the_ledger_is_searched_by_number_and_owner(client: Client) -> None:
    grant = {"first": 1, "last": 10, "owner": "node-1", "state": "granted"}
    adapter = answering(client, (200, {"items": [grant], "next": ""}))
    [found] = client.ledger("orders", number=7, owner="node-1")
    assert (found.first, found.last, found.owner) == (1, 10, "node-1")
    assert "number=7" in str(adapter.asked[0].url) and "owner=node-1" in str(adapter.asked[0].url)


def test_what_is_left_and_what_is_in_doubt_is_handed_on(client: Client) -> None:
    answering(client, (200, {"moved": 3, "left": 2, "in_doubt": 1}))
    moved = client.requeue_poison("q")
    assert (int(moved), moved.left, moved.in_doubt) == (3, 2, 1)


def test_an_act_is_tried_again_under_the_same_key(client: Client) -> None:
    adapter = answering(client, requests.ConnectionError("gone"), (503, {"detail": "away"}), (200, DONE))
    assert client.clear_queue("q").request_id == "r"
    assert len({asked.headers["Idempotency-Key"] for asked in adapter.asked}) == 1


def test_a_wait_that_outlasts_the_patience_is_an_error_at_once(client: Client) -> None:
    adapter = answering(client, (429, {"detail": "too many requests"}, {"Retry-After": "3600"}))
    with pytest.raises(ApiError, match="too many requests") as caught:
        client.gate("g")
    assert caught.value.status == 429 and len(adapter.asked) == 1


@pytest.mark.parametrize(("read", "maybe_done"), [(True, False), (False, True)])
def test_an_api_that_never_answers_may_have_acted_but_not_by_a_read(read: bool, maybe_done: bool) -> None:
    client = Client("https://host", "sesame", backoff=Backoff(base_seconds=0.001, deadline_seconds=0.001))
    answering(client, *[requests.ConnectionError("gone")] * 3)
    with client, pytest.raises(ApiUnavailable, match="did not answer: ConnectionError") as caught:
        client.gate("g") if read else client.clear_queue("q")
    assert caught.value.maybe_done is maybe_done


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, b"<html>"), "sent an invalid answer"),
        ((302, b"", {"Location": "https://elsewhere"}), "answered 302; is that the dashboard's address"),
        ((404, b"<html>"), "answered 404; is that the dashboard's address"),
        ((403, {"title": "Forbidden"}), "Forbidden"),
        ((400, {}), "the API answered 400"),
        ((422, {"errors": [{"where": "share", "what": "is above 1"}]}), "share: is above 1"),
    ],
)
def test_what_went_wrong_is_said_in_the_words_of_the_api(client: Client, answer: Any, words: str) -> None:
    answering(client, answer)
    with pytest.raises(ApiError, match=words):
        client.gate("g")


def test_an_outcome_that_the_dashboard_does_not_know_is_maybe_done(client: Client) -> None:
    answering(client, (500, {"detail": "storage gave no answer", "outcome": "unknown", "request_id": "r9"}))
    with pytest.raises(ApiError) as caught:
        client.clear_queue("q")
    assert (caught.value.maybe_done, caught.value.request_id) == (True, "r9")
