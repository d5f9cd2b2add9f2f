"""How far a saga is, and what each event makes of it. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from coordinator.bounds import Count, KeyText, Moment, Remark
from coordinator.errors import KennelError

MAX_STEPS = 10_000

State = Literal["running", "compensating", "done", "compensated", "stuck"]
ENDED: tuple[State, ...] = ("done", "compensated", "stuck")
OPEN: tuple[State, ...] = ("running", "compensating", "stuck")
MAX_HISTORY = 200
# So many runners in a row may end in the middle of the same step; then that step is what ends them.
MAX_RUNNERS = 20
THREAD = "thread"


class SagaError(KennelError):
    """A saga was asked for something that it cannot do; the message names the saga and its state."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to a saga: when (seconds since 1970), what, to which step, and who saw it."""

    at: Moment
    what: KeyText
    step: KeyText = ""
    detail: Remark = ""
    by: KeyText = ""
    epoch: Count = 0


class Shape(NamedTuple):
    """What the code at hand knows of a step: its name, and whether it can be undone."""

    name: str
    undoable: bool


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """A saga's whole state, as stored. `did` names the steps whose effects are there (in compensation: still are).

    `done` is their number, for readers of older versions, which knew steps by their place only. `plan` are the steps as the
    latest runner had them, `undoable` those of them with a compensation; `version` is that of the code that started the saga.
    `tries` counts failed attempts of the current step; `epoch` rises with every runner that takes the saga over, and
    `runners` counts those that ended in the middle of the current step. `guard` is the message that brought the present
    runner: until `held_until` other messages leave the saga to it. `resume` is the state to which a saga returns that is stuck
    though nothing failed to be undone; `unfit` if that is for the steps of a deployment. `deadline_at` 0 means none. `queue` gets its messages. The latest 200 events are kept.
    """

    saga: KeyText
    key: KeyText
    input: msgspec.Raw
    state: State = "running"
    done: Count = 0
    tries: Count = 0
    epoch: Count = 0
    started_at: Moment = 0.0
    changed_at: Moment = 0.0
    deadline_at: Moment = 0.0
    error: Remark = ""
    results: Annotated[dict[KeyText, Any], Meta(max_length=MAX_STEPS)] = {}
    queue: KeyText = ""
    history: Annotated[tuple[Event, ...], Meta(max_length=MAX_STEPS)] = ()
    did: Annotated[tuple[KeyText, ...], Meta(max_length=MAX_STEPS)] = ()
    plan: Annotated[tuple[KeyText, ...], Meta(max_length=MAX_STEPS)] = ()
    undoable: Annotated[tuple[KeyText, ...], Meta(max_length=MAX_STEPS)] = ()
    version: KeyText = ""
    runners: Count = 0
    guard: KeyText = ""
    held_until: Moment = 0.0
    resume: Literal["", "running", "compensating"] = ""
    unfit: bool = False
    indexed: bool = False

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED


def _noted(progress: Progress, event: Event, **changes: Any) -> Progress:
    history = (*progress.history, event)[-MAX_HISTORY:]
    if "did" in changes:
        changes["done"] = len(changes["did"])
    return msgspec.structs.replace(progress, changed_at=event.at, history=history, **changes)


# --- deployments ------------------------------------------------------------------------------------------------


def named(progress: Progress, steps: Sequence[str]) -> Progress:
    """Progress as versions stored it that knew steps by their place: the names come from its history.

    Where the history was cut, `steps` fill in. Raises `SagaError` where both are silent or contradict each other.
    """
    if len(progress.did) == progress.done:
        return progress
    did, failed = list[str](), ""
    for event in progress.history:
        if event.what == "done":
            did.append(event.step)
        elif event.what == "failed":  # former versions wrote this of compensations, too
            failed = event.step
        elif event.what == "undone" and did and did[-1] == event.step:
            did.pop()
    if len(did) == progress.done - 1 and progress.state != "running":
        # The current step is undone, too; a time-out does not name it.
        did.append(failed if failed and failed not in did else "".join(steps[len(did) : len(did) + 1]))
    if len(did) != progress.done:
        cut = tuple(steps[: progress.done])
        if len(cut) != progress.done or tuple(did) != cut[progress.done - len(did) :]:
            did = [""]
        else:
            did = list(cut)
    if "" in did:
        raise SagaError(
            f"{progress.done} steps are done, but neither its history nor the steps here ({_list(steps)}) say which"
        )
    return msgspec.structs.replace(progress, did=tuple(did))


def misfit(progress: Progress, shapes: Sequence[Shape], version: str) -> str:
    """Why these steps cannot carry the saga on, in words; "" if they can.

    They can if nothing is gone, renamed or moved, and what is new comes after the current step.
    """
    if progress.version != version:
        return f"it was started by version {progress.version!r}, and this is version {version!r}"
    names = [shape.name for shape in shapes]
    lost = [name for name in progress.did if name not in names]
    if lost:
        return f"done and not here: {_list(lost)}"
    fixed = [shape.name for shape in shapes if not shape.undoable]
    lost = [name for name in progress.did if name in progress.undoable and name in fixed]
    if lost:
        return f"done and without a compensation here: {_list(lost)}"
    if progress.state == "compensating":
        return ""
    lost = [name for name in progress.plan if name not in names]
    if lost:
        return f"planned and not here: {_list(lost)}"
    if not progress.plan and len(progress.did) >= len(names):
        return f"all steps here are done ({_list(names)}), but more were planned"
    reached = list(progress.plan[: len(progress.did) + 1]) or list(progress.did)
    if names[: len(reached)] != reached or [name for name in names if name in progress.plan] != list(
        progress.plan
    ):
        return (
            f"it was begun as {_list(progress.plan or progress.did)}, and the steps here are {_list(names)}"
        )
    return ""


def unfit(progress: Progress, why: str, *, at: float, by: str) -> Progress:
    """The steps of this runner do not fit: stuck, until a runner comes whose steps do."""
    error = f"the steps changed while it ran: {why}. Run the version that fits, or retry once this one does"
    event = Event(at, "does not fit", detail=why[:500], by=by, epoch=progress.epoch)
    resume = progress.resume or ("compensating" if progress.state == "compensating" else "running")
    return _noted(progress, event, state="stuck", resume=resume, unfit=True, error=error[:2000])


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


# --- running ----------------------------------------------------------------------------------------------------


def taken(
    progress: Progress, shapes: Sequence[Shape] = (), *, at: float, by: str, guard: str = ""
) -> Progress:
    """A runner takes over: from now on writes of earlier runners are refused."""
    epoch, last = progress.epoch + 1, progress.history[-1].what if progress.history else ""
    event = Event(at, "taken", by=by, epoch=epoch)
    runners = progress.runners + 1 if last in ("taken", "overdue") else 0
    plan = {
        "plan": tuple(shape.name for shape in shapes),
        "undoable": tuple(shape.name for shape in shapes if shape.undoable),
    }
    progress = _noted(progress, event, epoch=epoch, guard=guard, runners=runners, **(plan if shapes else {}))
    if runners < MAX_RUNNERS:
        return progress
    name = next_step(progress, progress.plan) or ""
    error = f"{runners} runners ended in the middle of {name}, one after the other: it may end its process, or take too long"
    resume = "compensating" if progress.state == "compensating" else "running"
    event = Event(at, "gave up", name, by=by, epoch=epoch)
    return _noted(progress, event, state="stuck", resume=resume, error=error, runners=0)


def next_step(progress: Progress, steps: Sequence[str]) -> str | None:
    """The name of the step to run (or, in compensation, to undo); None if the saga is at an end."""
    if progress.state == "running" and len(progress.did) < len(steps):
        return steps[len(progress.did)]
    if progress.state == "compensating" and progress.did:
        return progress.did[-1]
    return None


def succeeded(progress: Progress, steps: Sequence[str], result: Any, *, at: float, by: str) -> Progress:
    """The current step is done, or undone."""
    name, epoch = next_step(progress, steps), progress.epoch
    assert name is not None
    state: State
    if progress.state == "running":
        did = (*progress.did, name)
        results = progress.results if result is None else {**progress.results, name: result}
        state = "done" if len(did) == len(steps) else "running"
        event = Event(at, "done", name, by=by, epoch=epoch)
        return _noted(progress, event, did=did, tries=0, runners=0, state=state, results=results, error="")
    did = progress.did[:-1]
    state = "compensating" if did else "compensated"
    return _noted(
        progress, Event(at, "undone", name, by=by, epoch=epoch), did=did, tries=0, runners=0, state=state
    )


def failed(
    progress: Progress, steps: Sequence[str], error: str, attempts: int | None, *, at: float, by: str
) -> Progress:
    """The current step failed: try again, or after `attempts` (None: never) undo, or give up undoing.

    The failed step is undone, too: nobody knows how far it came.
    """
    name = next_step(progress, steps)
    assert name is not None
    tries = progress.tries + 1
    what = "failed" if progress.state == "running" else "undo failed"
    event = Event(at, what, name, error[:500], by, progress.epoch)
    if attempts is None or tries < attempts:
        return _noted(progress, event, tries=tries, runners=0, error=error[:2000])
    if progress.state == "running":
        did = (*progress.did, name)
        return _noted(progress, event, tries=0, runners=0, state="compensating", did=did, error=error[:2000])
    return _noted(progress, event, tries=tries, runners=0, state="stuck", error=error[:2000])


def overdue(
    progress: Progress, steps: Sequence[str], seconds: float, *, was_cancelled: bool, at: float, by: str
) -> Progress:
    """The current step has used up its time, or its runner is to stop; its thread cannot be stopped, and is waited for."""
    cause = "its runner stops" if was_cancelled else f"took longer than {seconds:g} s"
    error = f"{cause}; it runs in a thread, which cannot be stopped, and is waited for"
    # Not even its own message may bring a second runner beside the thread.
    guard = THREAD if was_cancelled else progress.guard
    if progress.error == error:
        return msgspec.structs.replace(progress, changed_at=at, guard=guard)
    event = Event(at, "overdue", next_step(progress, steps) or "", error, by, progress.epoch)
    return _noted(progress, event, error=error, guard=guard)


def timed_out(progress: Progress, steps: Sequence[str], *, at: float, by: str) -> Progress:
    """The saga as a whole took too long: undo what was done, and what may have been begun."""
    did = tuple(steps[: len(progress.did) + 1])
    event = Event(at, "timed out", by=by, epoch=progress.epoch)
    return _noted(progress, event, tries=0, state="compensating", did=did, error="timed out")


def freed(progress: Progress, *, at: float, by: str) -> Progress:
    """An operator has a stuck saga tried again."""
    if progress.state != "stuck":
        raise SagaError(
            f"saga {progress.saga} {progress.key} is {progress.state}, not stuck; nothing to retry"
        )
    return resumed(progress, "retried", at=at, by=by)


def stuck_step(progress: Progress) -> str:
    """The name of the step that could not be undone; "" if the saga is not stuck on one."""
    is_undoing = progress.state == "stuck" and progress.resume in ("", "compensating")
    return progress.did[-1] if is_undoing and progress.did else ""


def repaired(progress: Progress, step: str, *, at: float, by: str) -> Progress:
    """An operator has undone by hand the step that could not be undone: it counts as undone, and the saga goes on."""
    found = stuck_step(progress)
    if not found:
        raise SagaError(
            f"saga {progress.saga} {progress.key} is {progress.state} and not stuck on a step to undo; nothing to mark"
        )
    if step != found:
        raise SagaError(f"saga {progress.saga} {progress.key} is stuck on {found}, not on {step}")
    going = resumed(progress, "retried", at=at, by=by)
    did = progress.did[:-1]
    return _noted(
        msgspec.structs.replace(going, history=progress.history),
        Event(at, "repaired", step, by=by, epoch=progress.epoch),
        did=did,
        state="compensating" if did else "compensated",
    )


def resumed(progress: Progress, what: str, *, at: float, by: str) -> Progress:
    """A stuck saga goes on where it was: with its steps, or undoing them."""
    event = Event(at, what, by=by, epoch=progress.epoch)
    state = progress.resume or "compensating"
    return _noted(
        progress, event, tries=0, runners=0, state=state, resume="", unfit=False, guard="", held_until=0.0
    )


def requeued(progress: Progress, *, at: float, until: float, by: str) -> Progress:
    """Nobody carried the saga on: it gets another message, and no more of them before `until`."""
    event = Event(at, "revived", by=by, epoch=progress.epoch)
    return _noted(progress, event, guard="", held_until=until)
