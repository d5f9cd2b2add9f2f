"""A request is one visit to a thread, and the thread's database connection serves the next one, too."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.backends.signals import connection_created
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.test import RequestFactory, override_settings

from dashboard.core.handler import MOST_FREE, Handler
from dashboard.live.fragments import draw

pytestmark = pytest.mark.django_db(transaction=True)


class Seen:
    """What requests did: the thread of the outermost middleware, and that of the view."""

    threads: list[tuple[int, int]] = []
    requests: list[weakref.ref[HttpRequest]] = []
    both_are_here = threading.Barrier(1)


def outermost(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def answer(request: HttpRequest) -> HttpResponse:
        outside = threading.get_ident()
        response = get_response(request)
        Seen.threads.append((outside, int(response["X-Thread"])))
        return response

    return answer


def innermost(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def answer(request: HttpRequest) -> HttpResponse:
        Seen.both_are_here.wait(30)
        Seen.requests.append(weakref.ref(request))
        assert not request.user.is_authenticated  # as pages do: it refers to the request
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        response = get_response(request)
        response["X-Thread"] = str(threading.get_ident())
        return response

    return answer


@pytest.fixture
def handler(settings: Any) -> Iterator[Handler]:
    Seen.threads, Seen.requests, Seen.both_are_here = [], [], threading.Barrier(1)
    here = f"{__name__}."
    with override_settings(MIDDLEWARE=[f"{here}outermost", *settings.MIDDLEWARE, f"{here}innermost"]):
        yield Handler()


async def ask(handler: Handler, path: str = "/nowhere/", *, later: asyncio.Queue[Any] | None = None) -> int:
    """The status of an answer; 0 if none came before the client went away."""
    scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"host", b"localhost")], "query_string": b""}  # fmt: skip
    asked, sent = asyncio.Queue[Any]() if later is None else later, []
    asked.put_nowait({"type": "http.request", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    await handler(scope, asked.get, send)
    return int(sent[0]["status"]) if sent else 0


async def test_middleware_and_view_run_in_one_visit_to_a_thread(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    visit, visits = loop.run_in_executor, []

    def counted(*args: Any) -> Any:
        visits.append(args[1])
        return visit(*args)

    monkeypatch.setattr(loop, "run_in_executor", counted)
    assert await ask(handler) == 404
    # What Django does at the beginning and at the end of each request, and the request.
    assert len(visits) <= 3
    [(outside, inside)] = Seen.threads
    assert outside == inside != threading.get_ident()


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_an_answered_request_is_gone_without_the_garbage_collector(handler: Handler) -> None:
    with without_collector():
        assert await ask(handler, "/") == 302
        assert [request() for request in Seen.requests] == [None]


def test_what_a_page_was_drawn_from_is_gone_without_the_garbage_collector() -> None:
    class Figures:
        text = "seven"

    template = engines["django"].from_string("{% with seven=figures.text %}{{ seven }}{% endwith %}")
    context = {"figures": Figures()}
    drawn_from = weakref.ref(context["figures"])
    with without_collector():
        assert draw(template, context, RequestFactory().get("/")) == "seven"  # type: ignore[arg-type]
        context.clear()
        assert drawn_from() is None


async def test_the_next_request_has_the_thread_and_the_connection_of_the_one_before(handler: Handler) -> None:
    made: list[int] = []

    def note(**kwargs: Any) -> None:
        made.append(threading.get_ident())

    connection_created.connect(note)
    try:
        for _ in range(3):
            assert await ask(handler) == 404
    finally:
        connection_created.disconnect(note)
    assert len(set(Seen.threads)) == 1
    assert len(made) == 1


async def test_requests_at_once_do_not_wait_for_each_other(handler: Handler) -> None:
    many = MOST_FREE + 2
    Seen.both_are_here = threading.Barrier(many)
    assert await asyncio.gather(*(ask(handler) for _ in range(many))) == [404] * many
    assert len(set(Seen.threads)) == many
    assert len(handler._free) == MOST_FREE


async def test_a_thread_that_may_be_at_work_still_serves_nobody_else(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_off(*args: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(handler, "handle", cut_off)
        with pytest.raises(asyncio.CancelledError):
            await ask(handler)
    assert handler._free == []
    assert await ask(handler) == 404
    assert len(handler._free) == 1


async def test_a_view_whose_client_went_away_keeps_nobody_waiting(handler: Handler) -> None:
    blocked = Seen.both_are_here = threading.Barrier(2)
    later = asyncio.Queue[Any]()
    left = asyncio.create_task(ask(handler, later=later))
    while not blocked.n_waiting:
        await asyncio.sleep(0.01)
    later.put_nowait({"type": "http.disconnect"})
    await asyncio.sleep(0.1)
    Seen.both_are_here = threading.Barrier(1)
    async with asyncio.timeout(20):
        assert await ask(handler) == 404
    assert not left.done()
    await asyncio.to_thread(blocked.wait, 30)
    assert await left == 0
