"""Nothing that one worker says, and nothing that storage holds, misleads or stops the dashboard."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinator.gates.state import GateState
from coordinator.realtime.bus import Notification
from coordinator.realtime.protocol import GateStatus, ListenerStatus, Receipt, WorkerState
from coordinator.testing.clock import ManualClock
from dashboard.core.audit import ActionFailed
from dashboard.core.dispatch import number_option
from dashboard.core.loops import DEAD_SECONDS, PATIENT, Loops
from dashboard.hub import notifications as announcing
from dashboard.hub.notifications import Announcements, GateNews
from dashboard.live import fleet_state as composing
from dashboard.live import presence
from dashboard.live.fleet import Depth, Sample, StorageView
from dashboard.live.fleet_state import FleetState
from dashboard.live.presence import Presence

from .making import fleet_state_of, hello

ROOT = Path(__file__).parents[3]

GATE = "start-it"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# --- hints ----------------------------------------------------------------------------------------------------------


class Told:
    """What was passed on."""

    def __init__(self, clock: ManualClock, sockets: int = 200) -> None:
        self.hints: list[Notification] = []
        self.announcements = Announcements(self.tell, lambda topic: sockets, clock=clock)

    async def tell(self, hint: Notification, but: str) -> None:
        self.hints.append(hint)


async def test_a_quiet_worker_is_passed_on_at_once(clock: ManualClock) -> None:
    told = Told(clock)
    await told.announcements.offer("i-a", Notification("queue:orders-in"))
    assert [hint.topic for hint in told.hints] == ["queue:orders-in"]


async def test_what_one_worker_announces_over_its_rate_waits_and_of_each_topic_the_newest_counts(
    clock: ManualClock,
) -> None:
    told = Told(clock)
    for number in range(10_000):
        await told.announcements.offer("i-loud", Notification(f"queue:q-{number % 7}", size=number))
    assert len(told.hints) == announcing.HINTS_AT_ONCE
    assert len(told.announcements) == 7
    await clock.advance(1.0)
    while await told.announcements.step():
        pass
    newest = {hint.topic: hint.size for hint in told.hints[int(announcing.HINTS_AT_ONCE) :]}
    assert newest == {f"queue:q-{number % 7}": number for number in range(9_993, 10_000)}


async def test_a_loud_worker_does_not_hold_up_a_quiet_one(clock: ManualClock) -> None:
    told = Told(clock)
    for number in range(1000):
        await told.announcements.offer("i-loud", Notification(f"queue:q-{number}"))
    assert len(told.announcements) == announcing.MOST_WAITING
    await told.announcements.offer("i-quiet", Notification("queue:orders-in"))
    assert told.hints[-1].topic == "queue:orders-in"


async def test_all_workers_together_may_make_so_many_writes_and_no_more(clock: ManualClock) -> None:
    told = Told(clock, sockets=1000)
    for worker in range(500):
        await told.announcements.offer(f"i-{worker}", Notification(f"queue:q-{worker}"))
    assert len(told.hints) == announcing.WRITES_AT_ONCE / 1000
    first = len(told.hints)
    await clock.advance(2.0)
    while await told.announcements.step():
        pass
    assert len(told.hints) - first == 2.0 * announcing.WRITES_PER_SECOND / 1000


# --- gates ----------------------------------------------------------------------------------------------------------


class Storage:
    """A gate in storage, and who asked for it."""

    def __init__(self, clock: ManualClock, epoch: int = 3) -> None:
        self.epoch, self.reads = epoch, 0
        self.known: dict[str, int] = {GATE: epoch}
        self.counted: list[Receipt] = []
        self.confirmed: list[GateState] = []
        self.news = GateNews(self.read, self.known.get, self.confirm, self.count, clock=clock)

    async def read(self, gate: str) -> GateState:
        self.reads += 1
        return GateState(name=gate, epoch=self.epoch if gate == GATE else 0)

    async def confirm(self, state: GateState) -> None:
        self.known[state.name] = state.epoch
        self.confirmed.append(state)

    def count(self, instance: str, receipt: Receipt) -> None:
        self.counted.append(receipt)


def receipt(epoch: int, gate: str = GATE) -> Receipt:
    return Receipt(gate, epoch, "push", 0.05, 1_700_000_000.0)


async def test_a_receipt_of_an_epoch_that_storage_does_not_have_is_not_counted(clock: ManualClock) -> None:
    storage = Storage(clock)
    storage.news.passed("i-a", receipt(10**15))
    storage.news.passed("i-b", receipt(3))
    await storage.news.step()
    assert [each.epoch for each in storage.counted] == [3]
    assert (storage.reads, storage.confirmed) == (1, [])


async def test_an_opening_by_another_program_is_confirmed_by_one_read_for_all_receipts(
    clock: ManualClock,
) -> None:
    storage = Storage(clock)
    storage.epoch = 4
    for number in range(50):
        storage.news.passed(f"i-{number}", receipt(4))
    await storage.news.step()
    assert (storage.reads, len(storage.counted), len(storage.confirmed)) == (1, 50, 1)


async def test_forged_hints_cost_few_reads_and_are_told_to_nobody(clock: ManualClock) -> None:
    storage = Storage(clock)
    for number in range(418):
        storage.news.hinted(GATE, 10**15 - number)
        storage.news.hinted(f"made-up-{number}", 1)
        await storage.news.step()
        await clock.advance(0.02)
    assert storage.reads <= 30
    assert storage.confirmed == []


# --- what storage holds -----------------------------------------------------------------------------------------------


def sample(at: float, *epochs: int, **fields: object) -> Sample:
    gates = tuple(GateState(name=f"gate-{n}", epoch=epoch, state="open") for n, epoch in enumerate(epochs))
    values: dict[str, object] = {"storage": StorageView(as_of=at), "gates": gates, "gates_as_of": at} | fields
    return Sample(at=at, **values)  # type: ignore[arg-type]


def board_at(clock: ManualClock) -> FleetState:
    return fleet_state_of(Presence("here", clock=clock), clock)


@pytest.mark.parametrize("now", [0, 2], ids=["deleted", "restored"])
async def test_a_gate_whose_epoch_went_back_is_shown_as_it_is_with_a_condition(
    clock: ManualClock, now: int
) -> None:
    board = board_at(clock)
    told: list[tuple[str, int]] = []
    board.gates.on_back.append(lambda gate, epoch: told.append((gate, epoch)))
    closed = GateState(name="gate-0", epoch=7, state="closed")
    await board.gates.changed(closed)
    await clock.advance(1.0)
    board.apply(sample(clock.time(), now) if now else sample(clock.time()))
    (gate,) = board.fleet(fresh=True).gates
    assert (gate.state, gate.epoch) == (("open", 2) if now else ("closed", 0))
    assert gate.problem == f"epoch went back from 7 to {now}: storage was restored?"
    assert any("went back" in each.what for each in board.fleet(fresh=True).attention)
    assert told == [("gate-0", now)]
    await board.gates.changed(replace(closed, epoch=8))
    assert board.fleet(fresh=True).gates[0].problem == ""


async def test_the_highest_epochs_outlive_the_process_and_what_is_below_them_is_shown(
    clock: ManualClock,
) -> None:
    first, second = board_at(clock), board_at(clock)
    first.apply(sample(clock.time(), 7, 4, 10**15))
    saved = first.gates.take_unsaved()
    assert {name: peak.epoch for name, peak in saved.items()} == {"gate-0": 7, "gate-1": 4}
    assert first.gates.take_unsaved() == {}
    first.gates.put_back(saved)
    assert first.gates.take_unsaved() == saved
    second.gates.remember(saved)
    await clock.advance(1.0)
    second.apply(sample(clock.time(), 3, 5))
    problems = [gate.problem for gate in second.fleet(fresh=True).gates]
    assert problems == ["epoch went back from 7 to 3: storage was restored?", ""]
    assert (second.gates.peak("gate-0"), second.gates.peak("gate-1")) == (7, 5)
    again = second.gates.take_unsaved()
    assert again["gate-0"].since is not None
    # Deleted for good: news for a day, and its highest epoch is kept for ever.
    third = board_at(clock)
    third.gates.remember({"gate-0": again["gate-0"]})
    await clock.advance(86_401.0)
    third.apply(sample(clock.time(), 3))
    assert third.fleet(fresh=True).gates[0].problem
    third.apply(sample(clock.time()))
    assert (third.fleet(fresh=True).gates, third.gates.peak("gate-0")) == ((), 7)
    fourth = board_at(clock)
    fourth.gates.remember({"gate-0": again["gate-0"]})
    fourth.apply(sample(clock.time()))
    assert (fourth.fleet(fresh=True).gates, fourth.gates.peak("gate-0")) == ((), 7)


async def test_a_gate_that_goes_back_a_second_time_is_shown_again(clock: ManualClock) -> None:
    board = board_at(clock)
    told: list[int] = []
    board.gates.on_back.append(lambda gate, epoch: told.append(epoch))
    for epoch in (7, 3, 8, 3, 3):
        await clock.advance(1.0)
        board.apply(sample(clock.time(), epoch))
    assert told == [3, 3]
    assert board.fleet(fresh=True).gates[0].problem == "epoch went back from 8 to 3: storage was restored?"


async def test_a_change_that_begins_again_below_a_forged_epoch_is_shown_at_once(clock: ManualClock) -> None:
    board = board_at(clock)
    board.apply(sample(clock.time(), 10**15))
    await clock.advance(1.0)
    await board.gates.changed(GateState(name="gate-0", epoch=4, state="closed"))
    (gate,) = board.fleet(fresh=True).gates
    assert (gate.state, gate.epoch, gate.problem) == ("closed", 4, "")


async def test_what_was_written_here_is_not_undone_by_a_reading_that_began_before(clock: ManualClock) -> None:
    board = board_at(clock)
    began = clock.time()
    await clock.advance(0.1)
    await board.gates.changed(GateState(name="gate-0", epoch=7, state="open"))
    board.apply(sample(began))
    assert [(gate.name, gate.epoch, gate.problem) for gate in board.fleet(fresh=True).gates] == [
        ("gate-0", 7, "")
    ]


async def test_a_gate_that_cannot_be_read_is_a_row_with_its_problem_and_the_others_are_current(
    clock: ManualClock,
) -> None:
    board = board_at(clock)
    board.apply(sample(clock.time(), 1, odd_gates={"a/b": "unreadable: no gate"}))
    fleet = board.fleet(fresh=True)
    assert [(gate.name, gate.state, gate.problem) for gate in fleet.gates] == [
        ("a/b", "unknown", "unreadable: no gate"),
        ("gate-0", "open", ""),
    ]
    assert fleet.read_at["gates"] == clock.time()


async def test_each_age_is_that_of_its_own_reading(clock: ManualClock) -> None:
    board = board_at(clock)
    at = clock.time()
    board.apply(sample(at, 1, gates_as_of=at - 60, leaders_as_of=at - 30, sequences_as_of=at))
    assert board.fleet(fresh=True).read_at == {
        "gates": at - 60,
        "queues": None,
        "leaders": at - 30,
        "sequences": at,
    }


def test_a_row_that_cannot_be_put_together_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(state: GateState, now: float) -> str:
        if state.name == "gate-0":
            raise OverflowError("int too large to convert to float")
        return "open"

    monkeypatch.setattr(composing, "phase", odd)
    fleet = composing.compose(sample(1.0, 1, 1), (), {}, composing.Rates(), now=1.0, requests={})
    assert [(gate.name, gate.problem) for gate in fleet.gates] == [
        ("gate-0", "unreadable: OverflowError"),
        ("gate-1", ""),
    ]


# --- how much one worker may bring ------------------------------------------------------------------------------------


def test_one_workers_made_up_names_are_summed_up_under_other(clock: ManualClock) -> None:
    known = Presence("here", clock=clock)
    known.joined(hello("good", state=WorkerState(requests={"queue.GetMessages": 5})), token="1")
    known.joined(hello("bad"), token="2")
    for turn in range(100):
        names = [f"made-up-{turn}-{number}" for number in range(200)]
        state = WorkerState(
            requests=dict.fromkeys(names, 1),
            queue_requests=dict.fromkeys(names, 1),
            queue_traffic={f"{name}/bytes_sent": 1 for name in names},
            listeners=tuple(ListenerStatus(name, done=turn) for name in names),
        )
        known.report("i-bad", state)
    known.report("i-good", WorkerState(requests={"queue.GetMessages": 9, "queue.PutMessage": 1}))
    assert len(known.requests) <= presence.MOST_OPERATIONS + 3
    assert len(known.queue_requests) <= presence.MOST_QUEUES + 1
    assert len(known.queue_traffic) <= 5 * presence.MOST_QUEUES + 1
    assert len(known.done) <= presence.MOST_QUEUES + 1
    assert known.requests[presence.OTHER] == 100 * 200 - presence.MOST_OPERATIONS
    assert (known.requests["queue.GetMessages"], known.requests["queue.PutMessage"]) == (9, 1)


async def test_what_no_process_can_have_done_is_not_counted(clock: ManualClock) -> None:
    known = Presence("here", clock=clock)

    def told(most: int) -> WorkerState:
        return WorkerState(
            requests={"queue.GetMessages": most, "blob.GetBlob": most},
            queue_requests={"orders-in": most},
            queue_traffic={"orders-in/bytes_sent": most},
            listeners=(ListenerStatus("orders-in", done=most),),
        )

    liar = replace(hello("liar", state=told(0)), started_at=clock.time())
    for turn in range(3):  # whoever comes back has no second chance
        known.joined(replace(liar, state=told(turn)), token="1")
        known.report("i-liar", told(10**15))
    most = 10_000 * 10
    assert sum(known.requests.values()) == sum(known.lately.values()) == most
    assert known.queue_requests["orders-in"] == most
    assert known.queue_traffic["orders-in/bytes_sent"] == 2 * 10**10
    assert known.done["orders-in"] == 100_000 * 10
    await clock.advance(60)
    known.joined(replace(liar, state=told(0)), token="1")
    known.report("i-liar", told(5_000))
    assert sum(known.requests.values()) == most + 10_000


def test_names_that_only_one_worker_tells_of_do_not_push_out_those_of_storage(clock: ManualClock) -> None:
    board = board_at(clock)
    for number in range(5):
        made_up = tuple(GateStatus(f"a-made-up-{number}-{n}") for n in range(200))
        board.presence.joined(hello(f"bad-{number}", state=WorkerState(gates=made_up)))
    for number in range(7):
        board.presence.joined(
            hello(f"good-{number}", state=WorkerState(gates=(GateStatus("z-not-made-yet"),)))
        )
    board.apply(sample(clock.time(), 1, queues=(Depth("orders-in", 3, 0, clock.time()),)))
    fleet = board.fleet(fresh=True)
    names = {gate.name for gate in fleet.gates}
    assert {"gate-0", "z-not-made-yet"} <= names
    assert len(names) == 5 * composing.CLAIMED_BY_ONE + 2
    assert any("not shown" in each.what for each in fleet.attention)


def test_all_workers_together_bring_a_bounded_number_of_names_that_storage_does_not_have(
    clock: ManualClock,
) -> None:
    board = board_at(clock)
    for number in range(60):
        made_up = tuple(GateStatus(f"made-up-{number}-{n}") for n in range(20))
        board.presence.joined(hello(f"bad-{number}", state=WorkerState(gates=made_up)))
    board.apply(sample(clock.time(), 1))
    fleet = board.fleet(fresh=True)
    assert len(fleet.gates) == composing.MOST_CLAIMED + 1
    assert any("1150 names" in each.what for each in fleet.attention)


# --- the dashboard's own work -----------------------------------------------------------------------------------------


async def test_a_loop_that_fails_begins_again_and_is_named(clock: ManualClock) -> None:
    loops, runs = Loops(clock=clock), 0
    stay = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise OverflowError("one bad item")
        await stay.wait()

    loops.start("presence", work)
    await clock.advance(2.0)
    assert (runs, loops.troubles(), loops.dead()) == (2, {"presence": "OverflowError"}, [])
    await loops.stop()


async def test_a_loop_that_has_ended_or_turns_no_more_is_dead(clock: ManualClock) -> None:
    loops = Loops(clock=clock)

    async def ends() -> None:
        return

    loops.start("ended", ends)
    loops.alive("sampler")
    await clock.advance(DEAD_SECONDS - 1)
    assert loops.dead() == ["ended"]
    await clock.advance(2.0)
    assert loops.dead() == ["ended", "sampler"]
    await loops.stop()


def test_the_documentation_names_each_loop_and_how_long_it_may_take() -> None:
    """A loop that waits for the database, storage or a receiver is in the row of ten minutes: a restart does not help it."""
    code = "\n".join(
        path.read_text() for path in [ROOT / "dashboard/asgi.py", *ROOT.glob("dashboard/hub/*.py")]
    )
    started = set(re.findall(r"\bstart\(\"([a-z-]+)\", ", code)) | set(
        re.findall(r'also=\{"([a-z-]+)"', code)
    )
    page = (ROOT / "docs" / "hub.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \|[^|]+\| (\d+) min \|$", page, re.M)
    said = {name: int(minutes) * 60.0 for names, minutes in rows for name in re.findall("`([a-z-]+)`", names)}
    assert said == {name: PATIENT.get(name, DEAD_SECONDS) for name in started}
    assert {"tallies", "bulk-acts"} <= set(PATIENT)


# --- what operators send ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["inf", "nan", 10**400, "-inf", [], "soon"])
def test_what_is_no_finite_number_is_refused(value: object) -> None:
    with pytest.raises(ActionFailed, match="number"):
        number_option({"at": value}, "at")
