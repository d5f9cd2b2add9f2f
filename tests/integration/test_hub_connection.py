"""The worker's end of the socket against a server that behaves and one that does not."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode

from coordinator.clock import SystemClock
from coordinator.realtime import hub_client, protocol
from coordinator.realtime.bus import RESYNC, Notification
from coordinator.realtime.hub_client import MAX_UNSENT, MOST_TOPICS, HubConnection


def hello() -> protocol.Hello:
    return protocol.Hello(
        version=1,
        worker="w",
        instance="i",
        host="h",
        pid=1,
        started_at=0.0,
        software="s",
        prefix="kennel-",
        state=protocol.WorkerState(gates=(protocol.GateStatus("a"),)),
    )


class Hub:
    """A hub of a few lines: welcomes, keeps what it hears, says what it is told to."""

    def __init__(
        self, *, first: str = protocol.encode(protocol.Welcome(1, 0.05, 0.0)), refuse: int = 0
    ) -> None:
        self.first, self.refuse = first, refuse
        self.heard: list[protocol.FromWorker] = []
        self.authorization: list[str | None] = []
        self.sockets: list = []
        self.thinks_seconds = 0.0
        self.listens = asyncio.Event()
        self.listens.set()
        self.port = 0

    async def handle(self, socket):
        self.sockets.append(socket)
        await asyncio.sleep(self.thinks_seconds)
        await socket.send(self.first)
        await self.listens.wait()
        async for frame in socket:
            self.heard.append(protocol.decode_from_worker(frame))

    def check(self, connection, request):
        self.authorization.append(request.headers.get("Authorization"))
        return connection.respond(self.refuse, "no") if self.refuse else None

    @asynccontextmanager
    async def running(self, **options):
        async with serve(
            self.handle,
            "127.0.0.1",
            self.port,
            subprotocols=[protocol.SUBPROTOCOL],
            process_request=self.check,
            **options,
        ) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield self

    def count(self, kind: type) -> int:
        return sum(isinstance(message, kind) for message in self.heard)


@asynccontextmanager
async def connected(hub: Hub, commands: list | None = None, **options):
    connection = HubConnection(
        f"ws://127.0.0.1:{hub.port}/",
        "sesame",
        hello=hello,
        on_command=(commands if commands is not None else []).append,
        **options,
    )
    task = asyncio.create_task(connection.run())
    try:
        yield connection
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_it_says_who_it_is_with_its_token_and_then_its_state_each_heartbeat():
    async with Hub().running() as hub, connected(hub):
        await until(lambda: hub.count(protocol.State) >= 3)
    assert hub.authorization[0] == "Bearer sesame"
    assert isinstance(hub.heard[0], protocol.Hello)


async def test_hints_and_commands_arrive_and_a_receipt_goes_out():
    commands: list[protocol.Command] = []
    seen: list[Notification] = []
    async with Hub().running() as hub, connected(hub, commands) as connection:
        connection.subscribe("gate:a", seen.append)
        await until(lambda: connection.is_connected)
        await hub.sockets[0].send(protocol.encode(protocol.Hinted(Notification("gate:a", epoch=7))))
        await hub.sockets[0].send(protocol.encode(protocol.Command("drain", "1")))
        connection.receipt(protocol.Receipt("a", 7, "push", 0.0, 0.0))
        await connection.publish(Notification("queue:b"))
        await until(lambda: commands and hub.count(protocol.Receipt) and hub.count(protocol.Announce))
    assert [hint.epoch for hint in seen if hint.topic == "gate:a"] == [7]


async def test_a_hint_in_pieces_is_heard_and_what_only_newer_hubs_say_is_skipped():
    commands: list[protocol.Command] = []
    seen: list[Notification] = []
    async with Hub().running() as hub, connected(hub, commands) as connection:
        connection.subscribe("gate:a", seen.append)
        await until(lambda: connection.is_connected)
        frame = protocol.encode(protocol.Hinted(Notification("gate:a", epoch=7)))
        await hub.sockets[0].send([frame[:9], frame[9:]])
        await hub.sockets[0].send('{"type": "weather", "of": "tomorrow"}')
        await hub.sockets[0].send(protocol.encode(protocol.Command("drain", "1")))
        await until(lambda: commands)
        assert connection.is_connected and len(hub.sockets) == 1
    assert [hint.epoch for hint in seen if hint.topic == "gate:a"] == [7]


class Read:
    """The worker's connection, to which bytes can be given as if they had been read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parsed, self.made = 0, []
        noted = self

        class Noted(hub_client.NotificationsFirst):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                noted.made.append(self)

        def receive_data(inner, data):
            self.parsed += 1
            receive(inner, data)

        receive = ClientProtocol.receive_data
        monkeypatch.setattr(hub_client, "NotificationsFirst", Noted)
        monkeypatch.setattr(ClientProtocol, "receive_data", receive_data)

    def bytes(self, data: bytes, step: int = 10**6) -> None:
        for start in range(0, len(data), step):
            self.made[0].data_received(data[start : start + step])


def hint(epoch: int, size: int = 0) -> bytes:
    return protocol.encode(protocol.Hinted(Notification("gate:a", epoch=epoch, state="x" * size))).encode()


def text(data: bytes, *, fin: bool = True, opcode: Opcode = Opcode.TEXT) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=False)


@pytest.mark.parametrize("size", [0, 300, 16_000])
async def test_a_hint_that_comes_alone_is_handed_over_without_the_parser(size: int, monkeypatch):
    seen: list[Notification] = []
    read = Read(monkeypatch)
    async with (
        Hub(first=protocol.encode(protocol.Welcome(2, 3600.0, 0.0))).running() as hub,
        connected(hub) as connection,
    ):
        connection.subscribe("gate:a", seen.append)
        await until(lambda: connection.is_connected)
        assert read.made[0].transport.max_size == hub_client.READ_BYTES
        seen.clear()
        before = read.parsed
        read.bytes(text(hint(7, size)))
        assert ([each.epoch for each in seen], read.parsed - before) == ([7], 0)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 40, 131, 10**6])
async def test_however_the_frames_are_cut_into_reads_each_hint_arrives_once_and_in_order(
    step: int, monkeypatch
):
    commands: list[protocol.Command] = []
    seen: list[Notification] = []
    read = Read(monkeypatch)
    pieces = hint(3, 200)
    frames = [
        text(hint(1)),
        text(hint(2, 300)),
        # A frame that looks like a hint, but is the rest of another: it is no message of its own.
        text(pieces[:50], fin=False),
        Frame(Opcode.PING, b"p").serialize(mask=False),
        text(pieces[50:], opcode=Opcode.CONT),
        text(protocol.encode(protocol.Command("drain", "1")).encode()),
        text(hint(4)),
        text(hint(5, 2_000)),
    ]
    async with (
        Hub(first=protocol.encode(protocol.Welcome(2, 3600.0, 0.0))).running() as hub,
        connected(hub, commands) as connection,
    ):
        connection.subscribe("gate:a", seen.append)
        await until(lambda: connection.is_connected)
        seen.clear()
        if step < 10**6:
            read.bytes(b"".join(frames), step)
        else:
            for frame in frames:
                read.bytes(frame)
        await until(lambda: commands and len(seen) == 5)
        assert connection.is_connected
        epochs = [each.epoch for each in seen]
    assert sorted(epochs) == [1, 2, 3, 4, 5]
    epochs.remove(3)  # what came in pieces may be overtaken: its text waits for a task's turn
    assert epochs == [1, 2, 4, 5]


@pytest.mark.parametrize("case", ["within a frame", "within a message"])
async def test_what_looks_like_a_hint_and_is_the_rest_of_something_else_is_none(case: str, monkeypatch):
    seen: list[Notification] = []
    read = Read(monkeypatch)
    rest = text(hint(9))
    start = text(b"\xc3" + rest)[: -len(rest)] if case == "within a frame" else text(b"{", fin=False)
    async with Hub().running() as hub, connected(hub) as connection:
        connection.subscribe("gate:a", seen.append)
        await until(lambda: connection.is_connected)
        read.bytes(start)
        read.bytes(rest)
        await until(lambda: len(read.made) == 2)  # nonsense, and it connected again
    assert [each for each in seen if each.topic == "gate:a"] == []


async def test_what_is_published_is_on_its_way_before_the_caller_goes_on():
    async with Hub().running() as hub, connected(hub) as connection:
        await until(lambda: connection.is_connected)
        await connection.publish(Notification("queue:b"))
        assert not connection._has_unsent


@pytest.mark.parametrize("frame", ["nonsense", protocol.encode(protocol.Welcome(1, 0.05, 0.0))])
async def test_a_connection_over_which_nonsense_comes_is_made_again(frame):
    seen: list[str] = []
    async with Hub().running() as hub, connected(hub) as connection:
        connection.subscribe("gate:a", lambda hint: seen.append(hint.topic))
        await until(lambda: connection.is_connected)
        await hub.sockets[0].send(frame)
        await until(lambda: hub.count(protocol.Hello) == 2 and connection.is_connected)
    assert seen.count(RESYNC) >= 3, "subscribers look for themselves whenever it comes or goes"


async def test_a_receipt_of_another_thread_goes_out_and_a_farewell_waits_for_it():
    hub = Hub(first=protocol.encode(protocol.Welcome(1, 60.0, 0.0)))
    async with hub.running(), connected(hub) as connection:
        await until(lambda: connection.is_connected)
        await asyncio.to_thread(connection.receipt, protocol.Receipt("a", 7, "push", 0.0, 0.0))
        await connection.flush()
        await until(lambda: hub.count(protocol.Receipt) == 1)


async def test_after_a_cut_it_reconnects_says_all_again_and_tells_subscribers_to_look_again():
    seen: list[str] = []
    hub = Hub()
    async with hub.running(), connected(hub) as connection:
        connection.subscribe("gate:a", lambda hint: seen.append(hint.topic))
        await until(lambda: connection.is_connected)
        await hub.sockets[0].close(code=protocol.CLOSE_GOING_AWAY)
        connection.receipt(protocol.Receipt("a", 1, "poll", 0.0, 0.0))
        await until(lambda: hub.count(protocol.Hello) == 2 and hub.count(protocol.Receipt) == 1)
        await hub.sockets[-1].close(code=protocol.CLOSE_GOING_AWAY)
        await until(lambda: hub.count(protocol.Receipt) == 2)  # a hub that was restarted hears it again
    assert hub.count(protocol.Hello) == 3
    assert seen.count(RESYNC) >= 3


@pytest.mark.parametrize(
    "hub",
    [
        Hub(refuse=403),
        Hub(refuse=502),
        Hub(first="nonsense"),
        Hub(first=protocol.encode(protocol.Command("stop", "1"))),
    ],
    ids=["refused", "away behind a proxy", "malformed", "no welcome"],
)
async def test_a_hub_that_misbehaves_is_tried_again_and_never_obeyed(hub):
    commands: list[protocol.Command] = []
    async with hub.running(), connected(hub, commands) as connection:
        await until(lambda: len(hub.authorization) >= 2)
        assert not connection.is_connected
    assert commands == []


async def test_hints_published_without_a_connection_stay_in_this_process():
    hub = Hub()
    async with hub.running():
        pass
    seen: list[str] = []
    async with connected(hub) as connection:
        connection.subscribe("queue:a", lambda hint: seen.append(hint.topic))
        await connection.publish(Notification("queue:a"))
    assert "queue:a" in seen


async def test_what_overflows_while_a_message_goes_out_is_the_oldest_and_nothing_else():
    hub = Hub()
    hub.listens.clear()
    async with hub.running(), connected(hub) as connection:
        await until(lambda: connection.is_connected)
        number = 0

        async def announce() -> None:
            nonlocal number
            number += 1
            await connection.publish(Notification("queue:" + "x" * 190, size=number))

        while len(connection._unsent) < 3:  # until the line is full and a message stands in it half sent
            for _ in range(MAX_UNSENT // 2):
                await announce()
            await asyncio.sleep(0.001)
        for _ in range(MAX_UNSENT + 20):
            await announce()
        hub.listens.set()
        sizes = lambda: [each.hint.size for each in hub.heard if isinstance(each, protocol.Announce)]  # noqa: E731
        await until(lambda: number in sizes())
    assert sizes()[-MAX_UNSENT:] == list(range(number - MAX_UNSENT + 1, number + 1))
    assert sizes() == sorted(set(sizes()))


async def test_a_hub_that_needs_longer_than_was_waited_for_is_waited_for_longer(monkeypatch):
    monkeypatch.setattr("coordinator.realtime.hub_client.OPEN_SECONDS", 0.05)
    hub = Hub()
    hub.thinks_seconds = 0.12
    async with hub.running(), connected(hub) as connection:
        await until(lambda: connection.is_connected)
    assert len(hub.authorization) >= 3


async def test_a_large_fleet_connects_again_over_seconds_and_waits_longer_for_the_hub(monkeypatch):
    pauses: list[float] = []

    class Clock(SystemClock):
        async def sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            await super().sleep(0.01)

    async def lost(reports: float) -> list[float]:
        pauses.clear()
        hub = Hub(first=protocol.encode(protocol.Welcome(2, reports, 0.0)))
        async with hub.running(), connected(hub, clock=Clock()) as connection:
            for count in range(1, 21):
                await until(lambda count=count: connection.is_connected and len(hub.sockets) == count)
                await hub.sockets[-1].close()
            assert connection._open_timeout == 5.0 + reports - 1.0
        return list(pauses)

    assert max(await lost(1.0)) <= 0.2
    spread = await lost(10.0)
    assert 1.0 < max(spread) <= 0.2 + 0.4 * 9


async def test_the_hub_is_informed_of_each_topic_that_somebody_follows():
    hub = Hub(first=protocol.encode(protocol.Welcome(protocol.VERSION, 60.0, 0.0)))

    def follows() -> set[str]:
        beats = [frame for frame in hub.heard if isinstance(frame, protocol.Hello | protocol.State)]
        return {topic for beat in beats for topic in beat.follows or ()}

    async with hub.running(), connected(hub) as connection:
        end = connection.subscribe("gate:a", lambda hint: None)
        await until(lambda: connection.is_connected)
        assert isinstance(hub.heard[0], protocol.Hello)
        await until(lambda: follows() == {"gate:a"})
        await asyncio.to_thread(connection.subscribe, "queue:b", lambda hint: None)
        await until(lambda: follows() == {"gate:a", "queue:b"})
        # A new waiter soon after misses nothing: the topic is kept, and nothing is sent for it.
        end()
        connection.subscribe("gate:a", lambda hint: None)
        count = len(hub.heard)
        connection.receipt(protocol.Receipt("a", 1, "poll", 0.0, 0.0))
        await until(lambda: hub.count(protocol.Receipt) == 1)
        assert len(hub.heard) == count + 1


async def test_of_more_topics_than_a_frame_should_hold_all_are_asked_for():
    hub = Hub(first=protocol.encode(protocol.Welcome(protocol.VERSION, 60.0, 0.0)))
    async with hub.running(), connected(hub) as connection:
        for number in range(MOST_TOPICS + 1):
            connection.subscribe(f"gate:g-{number}", lambda hint: None)
        await until(
            lambda: any(getattr(frame, "follows", None) == protocol.ALL_TOPICS for frame in hub.heard)
        )


async def test_a_heartbeat_of_version_2_brings_only_what_changed_and_comes_as_often_as_the_hub_says():
    hub = Hub(first=protocol.encode(protocol.Welcome(2, 60.0, 0.0)))
    async with hub.running(), connected(hub) as connection:
        await until(lambda: connection.is_connected and hub.count(protocol.State) == 1)
        await hub.sockets[0].send(protocol.encode(protocol.Pace(0.05)))
        await until(lambda: hub.count(protocol.State) >= 4)
    beats = [frame for frame in hub.heard if isinstance(frame, protocol.State)]
    assert all(beat == protocol.State(protocol.WorkerState(), same=("gates",)) for beat in beats[1:])


@pytest.mark.parametrize(
    ("reports", "pings", "polls"), [(1.0, 5.0, 30.0), (10.0, 25.0, 300.0), (3600.0, 60.0, 300.0)]
)
async def test_the_size_of_the_fleet_sets_pings_and_safety_polls_from_the_first_frame_on(
    reports: float, pings: float, polls: float, monkeypatch: pytest.MonkeyPatch
):
    made: list[hub_client.NotificationsFirst] = []

    class Noted(hub_client.NotificationsFirst):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(hub_client, "NotificationsFirst", Noted)
    hub = Hub(first=protocol.encode(protocol.Welcome(2, reports, 0.0)))
    async with hub.running(), connected(hub) as connection:
        await until(lambda: connection.is_connected)
        assert connection.safety_poll_seconds == polls
        assert [socket.ping_interval for socket in made] == [pings]


@pytest.mark.parametrize("says_something", [True, False])
async def test_a_frame_of_the_hub_is_a_sign_of_life_and_silence_ends_the_connection(
    says_something: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hub_client, "PING_SECONDS", 0.2)
    monkeypatch.setattr(hub_client, "REPORTS_A_PING", 0.2)
    pings: list[bytes] = []

    class Deaf(ServerConnection):
        def data_received(self, data: bytes) -> None:
            if data[0] & 0x0F == Opcode.PING:
                pings.append(data)
            else:
                super().data_received(data)

    hub = Hub()
    async with hub.running(create_connection=Deaf), connected(hub) as connection:
        await until(lambda: connection.is_connected)
        first = hub.sockets[0]
        if says_something:
            for _ in range(12):
                await first.send(protocol.encode(protocol.Hinted(Notification("queue:a"))))
                await asyncio.sleep(0.1)
            assert not pings
            assert hub.sockets == [first]
        else:
            await until(lambda: len(hub.sockets) > 1)
            assert pings


async def test_a_hub_of_version_1_gets_whole_states():
    async with Hub().running() as hub, connected(hub):
        await until(lambda: hub.count(protocol.State) >= 3)
    assert all(not frame.same for frame in hub.heard if isinstance(frame, protocol.State))
