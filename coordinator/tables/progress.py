"""How far a saga is, and what each event makes of it. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from coordinator.errors import KennelError

State = Literal["running", "compensating", "done", "compensated", "stuck"]
ENDED: tuple[State, ...] = ("done", "compensated", "stuck")
MAX_HISTORY = 200


class SagaError(KennelError):
    """A saga was asked for something that it cannot do; the message names the saga and its state."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to a saga: when (seconds since 1970), what, to which step, and who saw it."""

    at: float
    what: str
    step: str = ""
    detail: str = ""
    by: str = ""
    epoch: int = 0


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """A saga's whole state, as stored. `done` counts the steps whose effects are there (in compensation: still are).

    `tries` counts failed attempts of the step in hand; `epoch` rises with every runner that takes the saga over.
    `deadline_at` 0 means none. `queue` gets its messages. The latest 200 events are kept.
    """

    saga: str
    key: str
    input: msgspec.Raw
    state: State = "running"
    done: int = 0
    tries: int = 0
    epoch: int = 0
    started_at: float = 0.0
    changed_at: float = 0.0
    deadline_at: float = 0.0
    error: str = ""
    results: dict[str, Any] = {}
    queue: str = ""
    history: tuple[Event, ...] = ()

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED


def _noted(progress: Progress, event: Event, **changes: Any) -> Progress:
    history = (*progress.history, event)[-MAX_HISTORY:]
    return msgspec.structs.replace(progress, changed_at=event.at, history=history, **changes)


def taken(progress: Progress, *, at: float, by: str) -> Progress:
    """A runner takes over: from now on writes of earlier runners are refused."""
    epoch = progress.epoch + 1
    return _noted(progress, Event(at, "taken", by=by, epoch=epoch), epoch=epoch)


def next_step(progress: Progress, steps: Sequence[str]) -> int | None:
    """The index of the step to run (or, in compensation, to undo); None if the saga is at an end."""
    if progress.state == "running" and progress.done < len(steps):
        return progress.done
    if progress.state == "compensating" and progress.done > 0:
        return progress.done - 1
    return None


def succeeded(progress: Progress, steps: Sequence[str], result: Any, *, at: float, by: str) -> Progress:
    """The step in hand is done, or undone."""
    index = next_step(progress, steps)
    assert index is not None
    name, epoch = steps[index], progress.epoch
    if progress.state == "running":
        done = index + 1
        results = progress.results if result is None else {**progress.results, name: result}
        state: State = "done" if done == len(steps) else "running"
        event = Event(at, "done", name, by=by, epoch=epoch)
        return _noted(progress, event, done=done, tries=0, state=state, results=results)
    state = "compensated" if index == 0 else "compensating"
    return _noted(progress, Event(at, "undone", name, by=by, epoch=epoch), done=index, tries=0, state=state)


def failed(
    progress: Progress, steps: Sequence[str], error: str, attempts: int | None, *, at: float, by: str
) -> Progress:
    """The step in hand failed: try again, or after `attempts` (None: never) undo, or give up undoing.

    The failed step is undone, too: nobody knows how far it came.
    """
    index = next_step(progress, steps)
    assert index is not None
    tries = progress.tries + 1
    event = Event(at, "failed", steps[index], error[:500], by, progress.epoch)
    if attempts is None or tries < attempts:
        return _noted(progress, event, tries=tries, error=error[:2000])
    if progress.state == "running":
        return _noted(progress, event, tries=0, state="compensating", done=index + 1, error=error[:2000])
    return _noted(progress, event, tries=tries, state="stuck", error=error[:2000])


def timed_out(progress: Progress, steps: Sequence[str], *, at: float, by: str) -> Progress:
    """The saga as a whole took too long: undo what was done, and what may have been begun."""
    reached = min(progress.done + 1, len(steps))
    event = Event(at, "timed out", by=by, epoch=progress.epoch)
    return _noted(progress, event, tries=0, state="compensating", done=reached, error="timed out")


def freed(progress: Progress, *, at: float, by: str) -> Progress:
    """An operator has a stuck saga tried again."""
    if progress.state != "stuck":
        raise SagaError(
            f"saga {progress.saga} {progress.key} is {progress.state}, not stuck; nothing to retry"
        )
    return _noted(progress, Event(at, "retried", by=by, epoch=progress.epoch), tries=0, state="compensating")
