"""The workers' socket: the token first, then `Hello`, then heartbeats, receipts and hints."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from functools import partial
from typing import Any

import msgspec
from channels.db import database_sync_to_async

from coordinator.errors import ProtocolViolation
from coordinator.realtime import protocol
from coordinator.realtime.bus import Hint
from dashboard.core import audit, tokens
from dashboard.core.middleware import new_request_id
from dashboard.core.permissions import USUAL, Actor, Allowance, matches
from dashboard.hub.runtime import current
from dashboard.hub.socket import OPENING_SECONDS, RateLimit, SendQueue, Socket
from dashboard.live.presence import Entry

log = logging.getLogger(__name__)

HELLO_SECONDS = 5.0
# A worker sends at most five states a second; the receipts of all its gates come at once when it connects.
STATES_PER_SECOND, STATES_AT_ONCE = 6.0, 20.0
RECEIPTS_PER_SECOND, RECEIPTS_AT_ONCE = 10.0, 300.0
NOTED_SECONDS = 60.0
CHECKED_SECONDS = 0.25
_TOPIC = re.compile(r"(?!resync)[a-z]{2,20}:[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_noted: dict[str, float] = {}
_notes: set[asyncio.Task[Any]] = set()


def _note_done(task: asyncio.Task[Any]) -> None:
    _notes.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.error("The audit could not be written", exc_info=task.exception())


def within(state: protocol.WorkerState, allowed: Allowance) -> protocol.WorkerState:
    """What a worker reports, without the gates and queues that its token is not for."""
    if allowed.gates == allowed.queues == "*":
        return state
    return msgspec.structs.replace(
        state,
        gates=tuple(each for each in state.gates if matches(allowed.gates, each.name)),
        listeners=tuple(each for each in state.listeners if matches(allowed.queues, each.queue)),
        queue_requests={
            name: number for name, number in state.queue_requests.items() if matches(allowed.queues, name)
        },
        queue_traffic={
            name: number
            for name, number in state.queue_traffic.items()
            if matches(allowed.queues, name.rpartition("/")[0])
        },
    )


_checks: dict[str, asyncio.Task[tuple[int, Allowance] | None]] = {}


async def _checked(token: str) -> tuple[int, Allowance] | None:
    """The id of a valid token, and what its workers may claim.

    A fleet that comes back all at once shows one token a thousand times: asked within `CHECKED_SECONDS`, the database is asked once.
    A socket that came in meanwhile with a token that is revoked is closed by `background.sweep`, as all are.
    """
    check, loop = _checks.get(token), asyncio.get_running_loop()
    if check is None or check.get_loop() is not loop:
        check = asyncio.create_task(database_sync_to_async(tokens.admitted)(token), name="token")
        _checks[token] = check
        check.add_done_callback(partial(_forget_check, token))
    return await asyncio.shield(check)


def _forget_check(token: str, check: asyncio.Task[tuple[int, Allowance] | None]) -> None:
    is_valid = not check.cancelled() and check.exception() is None and check.result() is not None

    def forget() -> None:
        if _checks.get(token) is check:
            del _checks[token]

    # What opens nothing is asked for again: it may have been created just now.
    if is_valid:
        check.get_loop().call_later(CHECKED_SECONDS, forget)
    else:
        forget()


class WorkerConsumer(Socket):
    """One worker's socket."""

    hello: protocol.Hello | None = None
    token_id: int | None = None
    allowance: Allowance = USUAL
    send_queue: SendQueue | None = None
    mode: str = ""
    state = protocol.WorkerState()
    _origin: str = ""
    _deadline: asyncio.TimerHandle | None = None
    _late: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        runtime = current()
        token = _bearer(self.scope)
        client = self.scope.get("client") or ("",)
        self._origin = f"{tokens.digest_of(token)} {client[0]}"
        waits = runtime.admissions.wait_seconds(self._origin, time.monotonic())
        if waits is None:
            await self.refuse(protocol.CLOSE_TOO_FAST)
            return
        if waits > 0:
            await asyncio.sleep(waits)
        found = await _checked(token) if token else None
        if found is None or not runtime.is_running:
            if found is None:
                log.warning("A worker without a valid token was refused")
            await self.refuse(protocol.CLOSE_UNAUTHORIZED)
            return
        self.token_id, self.allowance = found
        await runtime.token_throttle.enter(self.token_id)
        await runtime.turns.wait(self.token_id)
        runtime.turns.took(self.token_id, OPENING_SECONDS)
        now, frames = time.monotonic(), self.allowance.per_second
        self.rate = RateLimit(frames, frames * 2, now)
        self._states = RateLimit(STATES_PER_SECOND, STATES_AT_ONCE, now)
        self._receipts = RateLimit(RECEIPTS_PER_SECOND, RECEIPTS_AT_ONCE, now)
        offered = self.scope.get("subprotocols") or []
        await self.welcome(protocol.SUBPROTOCOL if protocol.SUBPROTOCOL in offered else None)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HELLO_SECONDS, self._no_hello)

    def _no_hello(self) -> None:
        if self.hello is None:
            self._late = asyncio.create_task(
                self.go_away(protocol.CLOSE_MALFORMED, "no Hello in time"), name="no-hello"
            )

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.is_going:
            return
        if not self.rate.allows(time.monotonic()):
            await self._violated(protocol.CLOSE_TOO_FAST, f"over {self.allowance.per_second} frames a second")
            return
        turns = current().turns
        await turns.wait(self.token_id)
        began = time.monotonic()
        try:
            message = protocol.decode_from_worker(text_data if text_data is not None else bytes_data or b"")
            await self._take(message)
        except ProtocolViolation as error:
            await self._violated(protocol.CLOSE_MALFORMED, str(error))
        finally:
            turns.took(self.token_id, time.monotonic() - began)

    async def _violated(self, code: int, reason: str) -> None:
        current().admissions.violated(self._origin, time.monotonic())
        await self.go_away(code, reason)

    async def _take(self, message: protocol.FromWorker) -> None:
        runtime = current()
        if self.hello is None:
            if not isinstance(message, protocol.Hello):
                raise ProtocolViolation(f"the first frame must be Hello, not {type(message).__name__}")
            await self._greet(message)
            return
        instance, allowed, now = self.hello.instance, self.allowance, time.monotonic()
        match message:
            case protocol.State() as beat:
                # What is over the rate is not shown, but the next frame builds on it.
                state = self.state = protocol.whole(self.state, beat)
                allows = self._states.allows(now)
                if beat.follows is not None:
                    runtime.sockets.follow(instance, beat.follows, catch_up=allows)
                if allows or state.mode != self.mode:
                    self.mode = state.mode
                    shown = self._reported(self.hello, within(state, allowed))
                    self._note_disproved(runtime.presence.entries.get(instance), state)
                    runtime.presence.report(instance, shown)
                    runtime.missed_pushes.reported(instance, shown.gates)
            case protocol.Receipt() as receipt:
                if self._receipts.allows(now) and matches(allowed.gates, receipt.gate):
                    runtime.gate_news.passed(instance, receipt)
            case protocol.Announce(hint):
                await self._announce(hint)
            case protocol.Hello():
                raise ProtocolViolation("a second Hello")

    def _reported(self, hello: protocol.Hello, state: protocol.WorkerState) -> protocol.WorkerState:
        """What pages and other processes need of a state; the rest is summed up."""
        now, token = time.monotonic(), str(self.token_id)
        return current().reported.take(hello.instance, hello.started_at, state, token=token, now=now)

    async def _announce(self, hint: Hint) -> None:
        runtime, allowed = current(), self.allowance
        assert self.hello is not None
        kind, _, name = hint.topic.partition(":")
        if not _TOPIC.fullmatch(hint.topic):
            raise ProtocolViolation(f"a hint about {hint.topic[:40]!r}; it must be about KIND:NAME")
        patterns = {"gate": allowed.gates, "queue": allowed.queues, "rule": allowed.queues}.get(kind, "*")
        if not matches(patterns, name):
            return
        if kind == "gate":
            runtime.gate_news.hinted(name, hint.epoch)
        else:
            passed_on = Hint(hint.topic, hint.epoch, hint.size, origin=self.hello.worker, due=hint.due)
            await runtime.announcements.offer(self.hello.instance, passed_on)

    async def _greet(self, hello: protocol.Hello) -> None:
        runtime = current()
        version = protocol.agreed(hello.version, hello.oldest)
        prefix = runtime.storage.config.prefix
        if hello.prefix != prefix:
            await self.go_away(
                protocol.CLOSE_FORBIDDEN, f"this dashboard watches prefix {prefix}, not {hello.prefix[:40]}"
            )
            return
        token = str(self.token_id)
        has_secret = bool(hello.secret)
        state = hello.state
        # From here on the digest stands for the secret: it is shared with other processes, and compared.
        hello = msgspec.structs.replace(
            hello,
            secret=hashlib.sha256(f"{token}:{hello.secret}".encode()).hexdigest(),
            state=within(hello.state, self.allowance),
        )
        if reason := self._refusal(hello, has_secret=has_secret):
            log.warning("The worker %s was refused: %s", hello.worker, reason)
            self._note(hello, "worker.refused", reason)
            await self.go_away(protocol.CLOSE_FORBIDDEN, reason)
            return
        if self._deadline is not None:
            self._deadline.cancel()
        follows, self.state = hello.follows, state
        hello = self.hello = msgspec.structs.replace(hello, follows=None)
        send_queue = self.send_queue = SendQueue(
            self.send_text, self.go_away, write=self.write, name=hello.worker
        )
        # Welcome goes first, and nothing is awaited before the socket is in the fan-out: no hint is missed in between.
        send_queue.put(protocol.encode(protocol.Welcome(version, runtime.presence.pace, time.time())))
        older = runtime.sockets.join(hello.instance, send_queue, follows, takes_pace=version >= 2)
        runtime.consumers.add(self)
        runtime.connections[self.token_id] += 1
        shown = self._reported(hello, hello.state)
        runtime.presence.joined(msgspec.structs.replace(hello, state=shown), token=token)
        if older is not None:
            self._note(hello, "worker.replaced", "its older socket was closed")
            await older.end(protocol.CLOSE_REPLACED, "this worker has connected again")

    def _refusal(self, hello: protocol.Hello, *, has_secret: bool) -> str:
        """Why this worker may not come in; "" if it may."""
        runtime, allowed, token = current(), self.allowance, str(self.token_id)
        if not matches(allowed.workers, hello.worker):
            return f"this token is for workers named {allowed.workers}, not {hello.worker}"
        known = runtime.presence.entries.get(hello.instance)
        if known is not None and (known.hello.secret != hello.secret or (known.connected and not has_secret)):
            return "another process has this instance: it is taken over only with its token and its secret"
        own = runtime.presence.instances_of(token)
        if known is None and own >= allowed.instances:
            return f"this token allows {allowed.instances} processes, and as many are known"
        here = runtime.connections[self.token_id]
        if here >= allowed.connections and hello.instance not in runtime.sockets:
            return f"this token allows {allowed.connections} connections, and as many are open"
        return ""

    def _note_disproved(self, known: Entry | None, state: protocol.WorkerState) -> None:
        """A push that storage did not confirm goes into the audit: the hub, or who could write to it, was wrong."""
        before = {gate.name: gate.disproved for gate in known.state.gates} if known else {}
        for gate in state.gates:
            if self.hello is not None and gate.disproved > before.get(gate.name, 0):
                self._note(self.hello, "gate.push_disproved", f"gate {gate.name}: {gate.problem}")

    def _note(self, hello: protocol.Hello, action: str, what: str) -> None:
        """Into the audit; of one address and deed at most one row a minute, however often it is tried."""
        client = self.scope.get("client") or ("",)
        actor = Actor(f"worker {hello.worker}"[:150], "", str(client[0]), new_request_id())
        key, now = f"{action} {actor.address} {self.token_id}", time.monotonic()
        if now - _noted.get(key, float("-inf")) < NOTED_SECONDS:
            return
        if len(_noted) > 1000:
            _noted.clear()
        _noted[key] = now
        task = asyncio.create_task(
            database_sync_to_async(audit.noted)(actor, action, hello.instance, after=what), name="note"
        )
        _notes.add(task)
        task.add_done_callback(_note_done)

    def __str__(self) -> str:
        return self.hello.worker if self.hello else "a worker"

    async def disconnect(self, code: int) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        runtime = current()
        if code == protocol.CLOSE_TOO_FAST and not self.is_going:  # see `guard_fragments`
            runtime.admissions.violated(self._origin, time.monotonic())
        if self in runtime.consumers:
            runtime.consumers.discard(self)
            runtime.connections[self.token_id] -= 1
        if self.send_queue is not None and self.hello is not None:
            if runtime.sockets.leave(self.hello.instance, self.send_queue):
                runtime.presence.left(self.hello.instance)
                runtime.reported.forget(self.hello.instance)
                runtime.missed_pushes.forget(self.hello.instance, self.state.gates)
                runtime.announcements.forget(self.hello.instance)
            await self.send_queue.stop()


def _bearer(scope: dict[str, Any]) -> str:
    for name, value in scope.get("headers", ()):
        if name == b"authorization":
            return tokens.bearer_of(value.decode("latin-1"))
    return ""
