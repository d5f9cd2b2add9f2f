"""Promises of the hub, kept by a running dashboard over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
import websockets

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.errors import NotFound
from coordinator.gates.state import GateState, encode
from coordinator.leadership.election import Election
from coordinator.realtime import protocol
from coordinator.realtime.bus import Notification
from coordinator.realtime.protocol import Announce, GateStatus, Receipt, State, WorkerState
from coordinator.testing.azurite import Azurite
from tests.support.dashboard import TOKEN, BareWorker, Dashboard, Person, audit_of, until
from tests.support.fleet import Fleet, fleet

GATE = "start-order-processing"
LEASE = 15.0


async def test_a_worker_without_a_valid_token_is_refused_at_the_door(dashboard: Dashboard) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with BareWorker(dashboard, "w", token="kw_somebody_elses_token_000000000"):
            pass
    assert refused.value.response.status_code == 403


class Following(BareWorker):
    """Follows the topics that it is given."""

    def __init__(self, dashboard: Dashboard, name: str, *topics: str) -> None:
        super().__init__(dashboard, name)
        self.topics = topics

    def hello(self) -> protocol.Hello:
        return msgspec.structs.replace(super().hello(), follows=self.topics)


async def test_a_hint_for_one_queue_reaches_those_who_follow_it_only(dashboard: Dashboard) -> None:
    ours, theirs = f"queue:q{secrets.token_hex(4)}", f"queue:q{secrets.token_hex(4)}"
    async with (
        Following(dashboard, "ours", ours) as one,
        Following(dashboard, "theirs", theirs) as other,
        BareWorker(dashboard, "announcer") as announcer,
    ):
        await until(lambda: one.heard and other.heard and announcer.heard)
        await announcer.send(Announce(Notification(ours)))
        await announcer.send(Announce(Notification(theirs)))
        # What comes last is the proof that the first did not.
        await until(lambda: one.hints(ours) and other.hints(theirs))
        assert not other.hints(ours)
        await other.send(State(other.state, follows=(ours, theirs)))
        await until(lambda: other.hints(ours))
        await announcer.send(Announce(Notification(ours)))
        await until(lambda: len(other.hints(ours)) == 2)


async def test_a_heartbeat_of_changes_leaves_the_rest_as_it_was(dashboard: Dashboard) -> None:
    gate = f"g{secrets.token_hex(4)}"
    async with BareWorker(dashboard, "w") as worker:
        await worker.wait_at(gate)
        for number in range(30):  # more than are shown in a second: what is not shown counts all the same
            await worker.send(State(WorkerState(memory_bytes=1000 + number), same=("gates",)))
        await worker.send(State(WorkerState(mode="draining"), same=("gates", "memory_bytes")))
        with Person(dashboard, "vera") as vera:

            def shown() -> dict[str, Any]:
                answer = vera.get(f"/api/v1/workers/{worker.instance}").json()
                found: dict[str, Any] = answer.get("state", {})  # not there before its first frame was taken
                return found

            await until(lambda: shown().get("mode") == "draining")
            assert [each["name"] for each in shown()["gates"]] == [gate]
            assert shown()["memory_bytes"] == 1029


async def test_a_revoked_token_closes_the_sockets_that_used_it(dashboard: Dashboard) -> None:
    token = dashboard.manage("worker_token", "create", "soon revoked").split()[-1]
    async with BareWorker(dashboard, "w", token=token) as worker:
        await until(lambda: worker.heard)
        dashboard.manage("worker_token", "revoke", token[:8])
        await until(lambda: worker.closed, seconds=6)
        assert worker.closed is not None
        assert worker.closed[0] == protocol.CLOSE_UNAUTHORIZED
        assert "revoked" in worker.closed[1]
    with pytest.raises(websockets.InvalidStatus):
        async with BareWorker(dashboard, "w", token=token):
            pass


class Screen(Person):
    """A screen on the wall, with a token instead of a person."""

    def __enter__(self) -> Self:
        answer = self.post("/tv/kiosk", {"token": self.name}, page="/tv/kiosk")
        assert answer.url.endswith("/tv"), answer.text[:2000]
        return self


async def test_a_screen_watches_the_wallboard_until_its_token_is_revoked(dashboard: Dashboard) -> None:
    token = dashboard.manage("worker_token", "create", "hall", "--scope", "kiosk").split()[-1]
    with Screen(dashboard, token) as screen:
        with pytest.raises(websockets.InvalidStatus):
            async with screen.socket("overview"):
                pass
        async with screen.socket("tv") as socket:
            assert "region-tv" in await socket.recv()
            await socket.send(screen.frame("gate.close", GATE))
            await socket.wait_closed()
            assert socket.close_code == protocol.CLOSE_FORBIDDEN
        async with screen.socket("tv") as socket:
            assert "region-tv" in await socket.recv()
            dashboard.manage("worker_token", "revoke", token[:8])
            await socket.wait_closed()
            assert socket.close_code == protocol.CLOSE_FORBIDDEN
        with pytest.raises(websockets.InvalidStatus):
            async with screen.socket("tv"):
                pass


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("not json", "not a known message"),
        ('{"type":"launch"}', "not a known message"),
        (protocol.encode(State(WorkerState())).replace('"state":{}', '"state":{"gates":7}'), "gates"),
        ("x" * (protocol.MAX_FRAME_BYTES + 1), "bytes"),
    ],
)
async def test_a_malformed_frame_closes_the_socket_with_what_was_wrong(
    dashboard: Dashboard, frame: str, reason: str
) -> None:
    async with BareWorker(dashboard, "w") as worker:
        await until(lambda: worker.heard)
        await worker.send(frame)
        await until(lambda: worker.closed)
        assert worker.closed is not None
        assert worker.closed[0] == protocol.CLOSE_MALFORMED
        assert reason in worker.closed[1]


async def test_a_worker_that_floods_is_closed(dashboard: Dashboard) -> None:
    async with BareWorker(dashboard, "w") as worker:
        with suppress(websockets.ConnectionClosed):  # the close may come at any of them, or after the last
            for _ in range(2000):
                await worker.send(State(WorkerState()))
                await asyncio.sleep(0)
        await until(lambda: worker.closed)
        assert worker.closed is not None
        assert worker.closed[0] == protocol.CLOSE_TOO_FAST


async def test_a_worker_that_takes_nothing_is_cut_off_and_no_longer_counted(
    tmp_path: Path, connection_string: str, storage_prefix: str
) -> None:
    quick = ("--ws-ping-interval", "1", "--ws-ping-timeout", "2")
    with Dashboard(tmp_path, connection_string, storage_prefix, server=quick) as own:
        async with BareWorker(own, "deaf") as deaf, BareWorker(own, "loud") as loud:
            await until(lambda: deaf.heard and loud.heard)
            deaf.stop_reading()
            with Person(own, "olga") as olga:
                async with olga.socket("workers") as socket:
                    deadline = time.monotonic() + 20
                    for worker, done in ((deaf, False), (loud, True)):
                        answer = {"ok": not done}
                        while answer["ok"] is not done:  # until the ping was waited for in vain
                            assert time.monotonic() < deadline, answer
                            await socket.send(olga.frame("worker.drain", worker.instance))
                            answer = json.loads(await _frame_with(socket, '"action"'))
                            await asyncio.sleep(0.2)
            assert loud.closed is None


async def test_a_worker_of_another_fleet_is_told_so(dashboard: Dashboard) -> None:
    async with BareWorker(dashboard, "w", prefix="other-") as worker:
        await until(lambda: worker.closed)
        assert worker.closed is not None
        assert worker.closed[0] == protocol.CLOSE_FORBIDDEN
        assert dashboard.prefix in worker.closed[1]


async def test_a_hint_of_one_worker_reaches_the_others_and_not_itself(dashboard: Dashboard) -> None:
    async with BareWorker(dashboard, "a") as one, BareWorker(dashboard, "b") as other:
        await until(lambda: one.heard and other.heard)
        await one.send(Announce(Notification("queue:only-here", size=3)))
        await until(lambda: len(other.hints("queue:only-here")) == 1)
        assert one.hints("queue:only-here") == []


async def test_unleash_reaches_all_waiting_workers_at_once_and_counts_them(dashboard: Dashboard) -> None:
    workers = [BareWorker(dashboard, f"w-{number}") for number in range(3)]
    with Person(dashboard, "olga") as olga:
        async with workers[0], workers[1], workers[2]:
            for worker in workers:
                await until(lambda worker=worker: worker.heard)
                await worker.wait_at(GATE)
                worker.beat()
            async with olga.socket("gates") as socket:
                await _frame_with(socket, "w-2")
                pressed = time.monotonic()
                answer = await asyncio.to_thread(olga.post, f"/gates/{GATE}/unleash")
                assert answer.status_code == 200
                for worker in workers:
                    await until(lambda worker=worker: worker.hints(f"gate:{GATE}"))
                assert time.monotonic() - pressed < 2
                epoch = workers[0].hints(f"gate:{GATE}")[0].epoch
                for worker in workers[:2]:
                    await worker.send(Receipt(GATE, epoch, "push", 0.05, time.time()))
                assert "olga" in await _frame_with(socket, "2 of 3")
    done = [row for row in audit_of(dashboard) if row["action"] == "gate.open" and row["target"] == GATE]
    assert [row["outcome"] for row in done][-2:] == ["intent", "done"]
    assert {row["actor"] for row in done} == {"olga"}


async def test_what_one_operator_does_another_sees_within_a_second(dashboard: Dashboard) -> None:
    with Person(dashboard, "olga") as olga, Person(dashboard, "otto") as otto:
        async with otto.socket("gates") as socket:
            await socket.recv()
            await asyncio.to_thread(olga.post, "/gates/for-two/unleash")
            began = time.monotonic()
            await asyncio.to_thread(olga.post, "/gates/for-two/leash", {"reason": "stock check of olga"})
            await _frame_with(socket, "stock check of olga")
            assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("way", ["post", "socket"])
async def test_a_viewer_is_denied_by_every_way_and_the_attempt_is_in_the_audit(
    dashboard: Dashboard, way: str
) -> None:
    gate = f"not-for-viewers-{way}"
    with Person(dashboard, "vera") as vera:
        if way == "post":
            answer = await asyncio.to_thread(vera.post, f"/gates/{gate}/unleash")
            assert answer.status_code == 403
        else:
            async with vera.socket("gates") as socket:
                await socket.recv()
                await socket.send(vera.frame("unleash", gate))
                answered = json.loads(await _frame_with(socket, '"ok"'))
                assert answered["ok"] is False
                assert "operator" in answered["error"]
    rows = [row for row in audit_of(dashboard) if row["target"] == gate]
    assert [(row["actor"], row["action"], row["outcome"]) for row in rows] == [
        ("vera", "gate.open", "denied")
    ]


async def test_an_operator_may_act_through_the_socket(dashboard: Dashboard) -> None:
    with Person(dashboard, "olga") as olga:
        async with olga.socket("gates") as socket:
            await socket.recv()
            await socket.send(olga.frame("unleash", "by-socket", reason="quick"))
            answered = json.loads(await _frame_with(socket, '"ok"'))
            assert answered["ok"] is True
            assert answered["result"]["state"] == "open"
    assert [r["outcome"] for r in audit_of(dashboard) if r["target"] == "by-socket"] == ["intent", "done"]


@pytest.mark.parametrize("frame", ["{", "[1]", '{"action": 3}', "x" * 20_000])
async def test_a_malformed_frame_of_a_browser_closes_its_socket(dashboard: Dashboard, frame: str) -> None:
    with Person(dashboard, "olga") as olga:
        async with olga.socket("gates") as socket:
            await socket.send(frame)
            with pytest.raises(websockets.ConnectionClosed) as closed:  # noqa: PT012 - regions may come first
                while True:
                    await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == protocol.CLOSE_MALFORMED
            assert closed.value.rcvd.reason


async def test_a_socket_of_another_origin_or_of_nobody_is_refused(dashboard: Dashboard) -> None:
    with Person(dashboard, "olga") as olga:
        with pytest.raises(websockets.InvalidStatus):
            async with olga.socket("gates", origin="https://evil.example"):
                pass
        olga.http.cookies.clear()
        with pytest.raises(websockets.InvalidStatus):
            async with olga.socket("gates"):
                pass


@pytest.mark.parametrize(
    "origin", ["https://127.0.0.1:{port}", "http://127.0.0.1:1", "http://localhost:{port}"]
)
async def test_a_page_of_another_scheme_port_or_name_of_this_machine_opens_no_socket(
    dashboard: Dashboard, origin: str
) -> None:
    with Person(dashboard, "olga") as olga:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with olga.socket("gates", origin=origin.format(port=dashboard.port)):
                pass
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize("csrf", ["", "x" * 32, "olga"])
async def test_a_frame_without_the_csrf_token_of_the_page_does_nothing(
    dashboard: Dashboard, csrf: str
) -> None:
    with Person(dashboard, "olga") as olga:
        async with olga.socket("gates") as socket:
            await socket.send(json.dumps({"action": "unleash", "target": "by-stranger", "csrf": csrf}))
            answered = json.loads(await _frame_with(socket, '"ok"'))
            assert answered["ok"] is False
            assert "CSRF" in answered["error"]
    assert not [row for row in audit_of(dashboard) if row["target"] == "by-stranger"]


async def test_a_password_change_closes_the_open_sockets_and_ends_the_sessions(dashboard: Dashboard) -> None:
    change = (
        "from django.contrib.auth.models import User\nu = User.objects.get(username='otto')\n{}\nu.save()"
    )
    kept = dashboard.manage(code="from django.contrib.auth.models import User\nprint(User.objects.get(username='otto').password)").strip()  # fmt: skip
    with Person(dashboard, "otto") as otto:
        async with otto.socket("gates") as socket:
            await socket.recv()
            await asyncio.to_thread(dashboard.manage, code=change.format("u.set_password('another battery')"))
            try:
                with pytest.raises(websockets.ConnectionClosed):  # noqa: PT012 - regions may come first
                    async with asyncio.timeout(30):
                        while True:
                            await socket.recv()
                assert socket.close_code == protocol.CLOSE_FORBIDDEN
                assert "/accounts/login/" in (await asyncio.to_thread(otto.get, "/gates/")).url
            finally:
                await asyncio.to_thread(dashboard.manage, code=change.format(f"u.password = {kept!r}"))


async def test_a_press_that_waits_for_storage_keeps_no_worker_out(
    own_dashboard: Dashboard, own_azurite: Azurite, tmp_path: Path
) -> None:
    away = Dashboard(tmp_path, own_azurite.connection_string, own_dashboard.prefix).start()
    try:
        with Person(away, "olga") as olga:
            async with olga.socket("gates") as socket:
                await socket.recv()
                os.kill(own_azurite.pid, signal.SIGSTOP)
                try:
                    await socket.send(olga.frame("unleash", "while-away"))
                    answer = asyncio.create_task(_frame_with(socket, '"ok"', seconds=60))
                    async with BareWorker(away, "w") as worker:
                        await until(lambda: worker.heard)
                        assert not answer.done()
                finally:
                    os.kill(own_azurite.pid, signal.SIGCONT)
                await answer
    finally:
        away.stop()


async def test_a_socket_closes_when_its_role_is_taken_away_or_its_session_ends(dashboard: Dashboard) -> None:
    with Person(dashboard, "olga") as olga, Person(dashboard, "otto") as otto:
        async with olga.socket("gates") as one, otto.socket("gates") as other:
            await one.recv()
            await other.recv()
            dashboard.manage(
                code="from django.contrib.auth.models import User\n"
                "User.objects.get(username='otto').groups.clear()"
            )
            try:
                await asyncio.to_thread(olga.post, "/accounts/logout/")
                for socket in (one, other):
                    with pytest.raises(websockets.ConnectionClosed):  # noqa: PT012 - regions may come first
                        async with asyncio.timeout(6):
                            while True:
                                await socket.recv()
                    assert socket.close_code == protocol.CLOSE_FORBIDDEN
            finally:
                dashboard.manage(
                    code="from django.contrib.auth.models import Group, User\n"
                    "User.objects.get(username='otto').groups.set([Group.objects.get(name='operator')])"
                )


@asynccontextmanager
async def leader_of(
    dashboard: Dashboard, name: str, folder: Path
) -> AsyncIterator[tuple[Fleet, Election, float]]:
    """A process that leads and tells the dashboard; an onlooker; and when the lease was still free."""
    os.environ["NODES_TOKEN"] = TOKEN
    told = {"names": name, "node": name, "ledger": folder / "rows.sqlite3", "tell_leases": 1}
    config, free_at = StorageConfig(prefix=dashboard.prefix), 0.0
    async with (
        Storage.from_connection_string(dashboard.connection_string, config=config) as storage,
        fleet(dashboard.connection_string, dashboard.prefix, "lead", hub=dashboard.hub_url, **told) as nodes,
    ):
        del os.environ["NODES_TOKEN"]
        election = storage.election(name, identity="onlooker")
        held = False
        while not held:
            asked = time.time()
            with suppress(NotFound):
                held = (await election.read()).is_held
            free_at = free_at if held else asked
        yield nodes, election, free_at


def shown_end(person: Person, name: str) -> float | None:
    """When the page says that the lease ends; None if it does not know, or if nobody has it."""
    found = re.search(
        rf'data-ends="([\d.]+)" aria-label="Lease left of {name}"', person.get("/leaders/").text
    )
    return float(found[1]) if found else None


async def test_the_countdown_on_the_page_is_that_of_the_lease(dashboard: Dashboard, tmp_path: Path) -> None:
    with Person(dashboard, "vera") as vera:
        async with leader_of(dashboard, "counted", tmp_path) as (_, _, free_at):
            end = await until(lambda: shown_end(vera, "counted"))
            # It was acquired after it was last seen free, and may have been renewed until now.
            assert free_at + LEASE - 1.0 <= end <= time.time() + LEASE + 1.0


@pytest.mark.slow
async def test_the_lease_of_a_killed_leader_ends_when_the_page_says(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    """Within a second of what the service is seen to do: at `low` it holds the lease, at `high` no more."""
    with Person(dashboard, "vera") as vera:
        async with leader_of(dashboard, "killed", tmp_path) as (nodes, election, free_at):
            seen: dict[float, float] = {}

            async def look() -> None:
                while True:
                    if (shown := await asyncio.to_thread(shown_end, vera, "killed")) is not None:
                        seen.setdefault(shown, time.time())
                    await asyncio.sleep(0.02)

            looking = asyncio.create_task(look())
            await until(lambda: max(seen, default=0.0) > free_at + LEASE + 3.0)  # a renewal is shown
            os.kill(nodes.pids[0], signal.SIGKILL)
            low = high = 0.0
            while not high:
                asked = time.time()
                if (await election.read()).is_held:
                    low = asked
                else:
                    high = time.time()
            looking.cancel()
            await asyncio.wait([looking])
            await until(lambda: shown_end(vera, "killed") is None, what="no countdown of a lease that ended")
            last = nodes.events("lease", role="leader")[-1]
    end = max(seen)
    on_its_way = max(0.0, seen[end] - last["asked"])  # a busy machine tells late
    print(f"told {on_its_way:.2f} s late; {end - low:+.2f} s from held, {end - high:+.2f} s from free")
    assert low - 1.0 <= end <= high + 1.0 + on_its_way


async def _frame_with(socket: websockets.ClientConnection, text: str, *, seconds: float = 8) -> str:
    """The first frame that holds a text."""
    async with asyncio.timeout(seconds):
        while True:
            frame = str(await socket.recv())
            if text in frame:
                return frame


@pytest.mark.parametrize("stolen", ["no secret", "another secret", "another token"])
async def test_an_instance_is_not_taken_over_without_its_token_and_its_secret(
    dashboard: Dashboard, stolen: str
) -> None:
    token = dashboard.manage("worker_token", "create", "another").split()[-1]
    async with BareWorker(dashboard, f"victim {stolen}") as victim:
        await until(lambda: victim.heard)
        thief = BareWorker(dashboard, "thief", token=token if stolen == "another token" else TOKEN)
        thief.instance = victim.instance
        thief.secret = {"no secret": "", "another secret": "a guess", "another token": victim.secret}[stolen]
        async with thief, BareWorker(dashboard, "other") as other:
            await until(lambda: thief.closed and other.heard)
            assert thief.closed is not None
            assert thief.closed[0] == protocol.CLOSE_FORBIDDEN
            assert "another process has this instance" in thief.closed[1]
            await other.send(Announce(Notification("queue:still-heard")))
            await until(lambda: victim.hints("queue:still-heard"))
            assert victim.closed is None
    await until(
        lambda: (
            [
                row
                for row in audit_of(dashboard)
                if (row["action"], row["outcome"]) == ("worker.refused", "denied")
            ]
        )  # of one address and token one row a minute: perhaps that of an attempt before this one
    )


async def test_a_worker_that_connects_again_closes_its_older_socket_with_the_reason(
    dashboard: Dashboard,
) -> None:
    async with BareWorker(dashboard, "twice") as older:
        await until(lambda: older.heard)
        newer = BareWorker(dashboard, "twice")
        newer.instance, newer.secret = older.instance, older.secret
        async with newer:
            await until(lambda: newer.heard and older.closed)
            assert older.closed is not None
            assert older.closed[0] == protocol.CLOSE_REPLACED
            assert "connected again" in older.closed[1]
            assert newer.closed is None
    rows = [row for row in audit_of(dashboard) if row["action"] == "worker.replaced"]
    assert [(row["target"], row["actor"]) for row in rows] == [(older.instance, "worker twice")]


async def test_a_push_that_storage_did_not_confirm_is_audited_once_and_a_workers_push_reaches_nobody(
    dashboard: Dashboard,
) -> None:
    """A worker cannot push a state through the hub, and what workers find of a hub's push is in the audit."""
    lie = GateState(name="t-pushed", epoch=9, state="open", by="mallory")
    async with BareWorker(dashboard, "liar") as liar, BareWorker(dashboard, "finder") as finder:
        await until(lambda: liar.heard and finder.heard)
        await liar.send(Announce(Notification("gate:t-pushed", epoch=9, state=encode(lie))))
        await liar.send(Announce(Notification("queue:t-after", state=encode(lie))))
        await until(lambda: finder.hints("queue:t-after"))
        assert not finder.hints("gate:t-pushed")
        assert finder.hints("queue:t-after")[0].state == ""
        for _ in range(3):
            status = GateStatus("t-pushed", disproved=1, problem="a push said epoch 9, open")
            await finder.send(State(WorkerState(gates=(status,))))
        await until(lambda: [row for row in audit_of(dashboard) if row["action"] == "gate.push_disproved"])
    rows = [row for row in audit_of(dashboard) if row["action"] == "gate.push_disproved"]
    assert [row["actor"] for row in rows] == ["worker finder"]
    assert "gate t-pushed: a push said epoch 9" in rows[0]["after"]


async def test_a_token_bounds_what_its_workers_call_themselves_and_how_many_they_are(
    dashboard: Dashboard,
) -> None:
    token = dashboard.manage(
        "worker_token", "create", "billing", "--workers", "billing-*", "--connections", "1"
    ).split()[-1]
    async with BareWorker(dashboard, "shipping-1", token=token) as misnamed:
        await until(lambda: misnamed.closed)
        assert misnamed.closed is not None
        assert "workers named billing-*" in misnamed.closed[1]
    async with (
        BareWorker(dashboard, "billing-1", token=token) as one,
        BareWorker(dashboard, "billing-2", token=token) as other,
    ):
        await until(lambda: one.heard and other.closed)
        assert other.closed is not None
        assert "allows 1 connections" in other.closed[1]


async def test_a_hint_that_would_make_all_workers_read_everything_is_refused(dashboard: Dashboard) -> None:
    async with BareWorker(dashboard, "w") as worker:
        await until(lambda: worker.heard)
        await worker.send(Announce(Notification("resync")))
        await until(lambda: worker.closed)
        assert worker.closed is not None
        assert worker.closed[0] == protocol.CLOSE_MALFORMED


async def test_a_worker_called_like_a_part_of_the_page_takes_nothing_from_it(dashboard: Dashboard) -> None:
    def all_four(page: str) -> str:
        return page if len(re.findall(r">\s*(?:bulk|notice|region-workers)\s*</a", page)) == 4 else ""

    with Person(dashboard, "olga") as olga:
        async with AsyncExitStack() as sockets:
            for name in ("bulk", "notice", "region-workers", "bulk"):
                await sockets.enter_async_context(BareWorker(dashboard, name))
            page = await until(lambda: all_four(olga.get("/workers/").text))
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert sorted(ids) == sorted(set(ids))
    assert len(re.findall(r">\s*bulk\s*</a", page)) == 2
