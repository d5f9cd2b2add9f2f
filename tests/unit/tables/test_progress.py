"""How far a saga is, event by event: every field that an event changes, and none besides."""

import msgspec
import pytest

from coordinator.tables import progress as rules
from coordinator.tables.progress import (
    MAX_HISTORY,
    MAX_RUNNERS,
    THREAD,
    Event,
    Progress,
    SagaError,
    Shape,
)

STEPS = ("reserve", "charge", "send")
SHAPES = (Shape("reserve", True), Shape("charge", True), Shape("send", False))
BASE = Progress(
    "order",
    "o-1",
    msgspec.Raw(b"{}"),
    epoch=4,
    started_at=1.0,
    changed_at=2.0,
    plan=STEPS,
    undoable=("reserve", "charge"),
    tries=2,
    runners=3,
    guard="m-1",
    error="before",
    results={"a": 1},
)
NOW = {"at": 9.0, "by": "w-1"}


def changed(progress, event, **fields):
    """As `progress`, with this event and these fields."""
    return msgspec.structs.replace(progress, changed_at=9.0, history=(*progress.history, event), **fields)


def at(state="running", done=0, **fields):
    return msgspec.structs.replace(BASE, state=state, did=STEPS[:done], done=done, **fields)


def event(what, step="", detail="", *, epoch=4):
    return Event(9.0, what, step, detail, "w-1", epoch)


@pytest.mark.parametrize(
    ("progress", "step"),
    [
        (at(), "reserve"),
        (at(done=2), "send"),
        (at(done=3), None),
        (at("compensating", 2), "charge"),
        (at("compensating", 0), None),
        (at("done", 3), None),
        (at("compensated", 1), None),
        (at("stuck", 1), None),
    ],
)
def test_the_step_in_hand_follows_from_what_was_done(progress, step):
    assert rules.next_step(progress, STEPS) == step


def test_a_saga_that_is_done_undone_or_stuck_has_ended():
    states = ["running", "compensating", "done", "compensated", "stuck"]
    assert [at(state).is_ended for state in states] == [False, False, True, True, True]


# --- succeeding and failing ---------------------------------------------------------------------------------------------


def test_a_step_that_is_done_resets_what_was_counted_for_it():
    got = rules.succeeded(at(done=1), STEPS, {"id": 7}, **NOW)
    assert got == changed(
        at(done=1), event("done", "charge"), did=STEPS[:2], done=2, tries=0, runners=0,
        results={"a": 1, "charge": {"id": 7}}, error="",
    )  # fmt: skip


@pytest.mark.parametrize("result", [0, False, ""])
def test_every_result_but_none_is_kept(result):
    assert rules.succeeded(at(), STEPS, result, **NOW).results == {"a": 1, "reserve": result}
    assert rules.succeeded(at(), STEPS, None, **NOW).results == {"a": 1}


def test_the_last_step_ends_the_saga():
    got = rules.succeeded(at(done=2), STEPS, None, **NOW)
    assert (got.state, got.did, got.done) == ("done", STEPS, 3)


def test_steps_are_undone_from_the_last_to_the_first():
    got = rules.succeeded(at("compensating", 2), STEPS, None, **NOW)
    assert got == changed(
        at("compensating", 2), event("undone", "charge"), did=STEPS[:1], done=1, tries=0, runners=0
    )
    assert rules.succeeded(got, STEPS, None, **NOW).state == "compensated"


@pytest.mark.parametrize("attempts", [4, None])
def test_a_failed_step_is_tried_again(attempts):
    got = rules.failed(at(done=1), STEPS, "no money", attempts, **NOW)
    assert got == changed(
        at(done=1), event("failed", "charge", "no money"), tries=3, runners=0, error="no money"
    )


def test_a_step_that_failed_too_often_is_undone_with_those_before_it():
    got = rules.failed(at(done=1), STEPS, "no money", 3, **NOW)
    assert got == changed(
        at(done=1), event("failed", "charge", "no money"), tries=0, runners=0, state="compensating",
        did=STEPS[:2], done=2, error="no money",
    )  # fmt: skip


def test_a_compensation_that_failed_too_often_leaves_the_saga_stuck():
    got = rules.failed(at("compensating", 2), STEPS, "no refund", 3, **NOW)
    assert got == changed(
        at("compensating", 2), event("undo failed", "charge", "no refund"), tries=3, runners=0, state="stuck", error="no refund"
    )  # fmt: skip


@pytest.mark.parametrize(("state", "attempts"), [("running", 9), ("running", 3), ("compensating", 3)])
def test_a_long_error_is_cut_in_the_history_and_in_the_row(state, attempts):
    got = rules.failed(at(state, 1), STEPS, "x" * 9000, attempts, **NOW)
    assert (len(got.history[-1].detail), len(got.error)) == (500, 2000)


def test_the_latest_events_are_kept():
    progress = at()
    for _ in range(MAX_HISTORY + 5):
        progress = rules.failed(progress, STEPS, "again", None, **NOW)
    assert len(progress.history) == MAX_HISTORY
    assert progress.tries == BASE.tries + MAX_HISTORY + 5


# --- time ---------------------------------------------------------------------------------------------------------------


def test_after_a_time_out_what_may_have_begun_is_undone_too():
    got = rules.timed_out(at(done=1), STEPS, **NOW)
    assert got == changed(
        at(done=1), event("timed out"), tries=0, state="compensating", did=STEPS[:2], done=2, error="timed out"
    )  # fmt: skip


def test_a_thread_that_takes_too_long_is_waited_for_and_noted_once():
    error = "took longer than 2.5 s; it runs in a thread, which cannot be stopped, and is waited for"
    got = rules.overdue(at(done=1), STEPS, 2.5, was_cancelled=False, **NOW)
    assert got == changed(at(done=1), event("overdue", "charge", error), error=error)
    again = rules.overdue(got, STEPS, 2.5, was_cancelled=False, at=11.0, by="w-1")
    assert again == msgspec.structs.replace(got, changed_at=11.0)


def test_a_thread_of_a_runner_that_stops_keeps_every_message_away():
    error = "its runner stops; it runs in a thread, which cannot be stopped, and is waited for"
    got = rules.overdue(at(done=3), STEPS, 2.5, was_cancelled=True, **NOW)
    assert got == changed(at(done=3), event("overdue", "", error), error=error, guard=THREAD)
    assert rules.overdue(at(error=error), STEPS, 2.5, was_cancelled=True, **NOW).guard == THREAD


# --- runners ------------------------------------------------------------------------------------------------------------


def test_a_runner_that_takes_over_raises_the_epoch_and_states_its_plan():
    got = rules.taken(at(plan=(), undoable=()), SHAPES, guard="m-2", **NOW)
    assert got == changed(
        at(), event("taken", epoch=5), epoch=5, guard="m-2", runners=0, plan=STEPS, undoable=("reserve", "charge")
    )  # fmt: skip
    bare = rules.taken(at(), **NOW)
    assert (bare.plan, bare.undoable, bare.guard) == (STEPS, ("reserve", "charge"), "")


@pytest.mark.parametrize(
    ("last", "runners"), [("taken", 4), ("overdue", 4), ("done", 0), ("failed", 0), ("revived", 0)]
)
def test_runners_that_end_in_the_middle_of_a_step_are_counted(last, runners):
    progress = at(history=(Event(1.0, "started"), Event(2.0, last)))
    assert rules.taken(progress, SHAPES, **NOW).runners == runners


@pytest.mark.parametrize(("state", "resume"), [("running", "running"), ("compensating", "compensating")])
def test_a_step_that_ends_every_runner_leaves_the_saga_stuck(state, resume):
    progress = at(state, 2, runners=MAX_RUNNERS - 1, history=(Event(1.0, "taken"),))
    assert (
        rules.taken(msgspec.structs.replace(progress, runners=MAX_RUNNERS - 2), SHAPES, **NOW).state == state
    )
    got = rules.taken(progress, SHAPES, **NOW)
    step = "send" if state == "running" else "charge"
    assert (got.state, got.resume, got.runners, got.epoch) == ("stuck", resume, 0, 5)
    assert got.history[-2:] == (event("taken", epoch=5), event("gave up", step, epoch=5))
    assert got.error == (
        f"{MAX_RUNNERS} runners ended in the middle of {step}, one after the other: "
        "it may end its process, or take too long"
    )


# --- operators ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resume", "state"), [("", "compensating"), ("running", "running")])
def test_a_stuck_saga_is_tried_again_where_it_was(resume, state):
    stuck = at("stuck", 1, resume=resume, unfit=True, held_until=8.0)
    assert rules.freed(stuck, **NOW) == changed(
        stuck, event("retried"), tries=0, runners=0, state=state, resume="", unfit=False, guard="", held_until=0.0
    )  # fmt: skip


@pytest.mark.parametrize("state", ["running", "compensating", "done", "compensated"])
def test_only_a_stuck_saga_can_be_retried(state):
    with pytest.raises(SagaError, match=f"^saga order o-1 is {state}, not stuck; nothing to retry$"):
        rules.freed(at(state), **NOW)


def test_a_saga_that_nobody_carries_on_gets_another_message_and_time_to_answer():
    assert rules.requeued(at(), until=60.0, **NOW) == changed(
        at(), event("revived"), guard="", held_until=60.0
    )


# --- deployments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "shapes", "why"),
    [
        (at(done=1), SHAPES, ""),
        (at(done=1), (*SHAPES, Shape("thank", False)), ""),
        (at(done=3, version="b"), SHAPES, "it was started by version 'b', and this is version ''"),
        (at(done=2), SHAPES[:1], "done and not here: charge"),
        (at(done=1), (Shape("reserve", False), *SHAPES[1:]), "done and without a compensation here: reserve"),
        (at("compensating", 1), SHAPES[:1], ""),
        (at(done=1), SHAPES[:2], "planned and not here: send"),
        (
            at(done=3, plan=(), undoable=()),
            SHAPES,
            "all steps here are done (reserve, charge, send), but more were planned",
        ),
        (
            at(done=1),
            (SHAPES[1], SHAPES[0], SHAPES[2]),
            "it was begun as reserve, charge, send, and the steps here are charge, reserve, send",
        ),
        (
            at(done=1),
            (SHAPES[0], SHAPES[2], SHAPES[1]),
            "it was begun as reserve, charge, send, and the steps here are reserve, send, charge",
        ),
        (
            at(done=1, plan=()),
            (Shape("pack", True), *SHAPES),
            "it was begun as reserve, and the steps here are pack, reserve, charge, send",
        ),
        (at(done=1, plan=()), SHAPES, ""),
        (at(done=0), (Shape("pack", True), *SHAPES), "it was begun as reserve, charge, send, and the steps here are pack, reserve, charge, send"),
        (at(done=1), (SHAPES[0], SHAPES[1], Shape("pack", True), SHAPES[2]), ""),
        (at(done=1), (SHAPES[0], Shape("pack", True), *SHAPES[1:]), "it was begun as reserve, charge, send, and the steps here are reserve, pack, charge, send"),
    ],
)  # fmt: skip
def test_what_no_longer_fits_is_named(progress, shapes, why):
    assert rules.misfit(progress, shapes, "") == why


@pytest.mark.parametrize(
    ("progress", "resume"),
    [(at(), "running"), (at("compensating", 1), "compensating"), (at("stuck", resume="compensating"), "compensating")],
)  # fmt: skip
def test_a_saga_that_no_longer_fits_is_stuck_and_says_why(progress, resume):
    got = rules.unfit(progress, "w" * 3000, **NOW)
    assert got.history[-1] == event("does not fit", detail="w" * 500)
    assert (got.state, got.resume, got.unfit, len(got.error)) == ("stuck", resume, True, 2000)
    assert rules.unfit(progress, "gone", **NOW).error == (
        "the steps changed while it ran: gone. Run the version that fits, or retry once this one does"
    )


def old(state, done, *history):
    """Progress as versions stored it that knew steps by their place."""
    events = tuple(Event(1.0, *each.split(" ", 1)) for each in history)
    return msgspec.structs.replace(BASE, state=state, done=done, did=(), history=events)


@pytest.mark.parametrize(
    ("progress", "did"),
    [
        (old("running", 0), ()),
        (old("running", 2, "done reserve", "done charge"), ("reserve", "charge")),
        (old("compensating", 1, "done reserve", "done charge", "undone charge"), ("reserve",)),
        (old("compensating", 2, "done reserve", "failed charge"), ("reserve", "charge")),
        (old("compensating", 2, "done reserve", "timed out"), ("reserve", "charge")),
        (old("compensating", 2, "failed reserve", "done reserve", "timed out"), ("reserve", "charge")),
        (old("running", 2, "done charge"), ("reserve", "charge")),
        (old("running", 3), STEPS),
        (old("running", 1, "taken", "done reserve", "taken"), ("reserve",)),
        (old("running", 1, "undone charge", "done reserve"), ("reserve",)),
        (old("compensating", 1, "done fetch", "undone charge"), ("fetch",)),
        (
            old("compensating", 2, "done reserve", "done charge", "done send", "undone send"),
            ("reserve", "charge"),
        ),
        (old("compensating", 2, "done reserve", "failed bill"), ("reserve", "bill")),
    ],
)
def test_the_names_of_an_older_version_come_from_its_history(progress, did):
    assert rules.named(progress, STEPS) == msgspec.structs.replace(progress, did=did)


@pytest.mark.parametrize(
    "progress", [old("running", 4), old("running", 2, "done send"), old("compensating", 4, "done reserve")]
)
def test_names_that_cannot_be_known_are_not_guessed(progress):
    with pytest.raises(
        SagaError,
        match=rf"^{progress.done} steps are done, but neither its history nor the steps here \(reserve, charge, send\) say which$",
    ):
        rules.named(progress, STEPS)


def test_an_error_says_so_when_there_are_no_steps_here():
    with pytest.raises(SagaError, match=r"nor the steps here \(none\) say which$"):
        rules.named(old("running", 4), ())
