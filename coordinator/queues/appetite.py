"""How many messages a listener asks for at a time. No I/O."""

from __future__ import annotations

from coordinator.queues.crew import Crew
from coordinator.queues.delivery import Delivery
from coordinator.queues.growth import Growth
from coordinator.queues.idle import fetch_size
from coordinator.queues.pace import Pace
from coordinator.queues.transport import MAX_BATCH

_SLOW_SECONDS = 0.2
_SOON_SECONDS = 1.0


class Appetite:
    """As much as the free tasks and the next half second can use, so that slow handlers leave the rest to others.

    Before a rate is known it doubles with each full answer that is done already.
    """

    def __init__(self, crew: Crew, growth: Growth, pace: Pace, *, batch: int) -> None:
        self._crew, self._growth, self._pace = crew, growth, pace
        self._batch = max(1, batch)
        self._asked = 0
        self._full = False

    def answered(self, found: int) -> None:
        """Note how many messages the last get brought."""
        self._full = found >= self._asked

    def ask(self) -> int:
        """The messages to ask for now; 0 for none."""
        crew = self._crew
        tasks = max(crew.active, self._growth.decision.tasks)
        if crew.is_resting:
            # A whole batch costs what one message costs; what turns out to be too much goes back, see `surplus`.
            slow = (self._pace.service_seconds or 0.0) > _SLOW_SECONDS
            tasks = max(tasks, self._growth.first_step() if slow else self._growth.allowed.stop - 1, 1)
        free = (tasks * crew.slots - crew.busy) * self._batch
        units, rate = len(crew.buffer), self._pace.per_second
        if units and units >= free and units > min(16.0, rate * 0.25):
            return 0
        per_message = max(1.0, self._pace.items_per_message)
        ask = fetch_size(
            waiting=-(-max(0, free) // round(per_message)),
            buffered=round(units / per_message),
            per_second=rate / per_message,
        )
        if self._full and free > 0 and not units:
            ask = max(ask, min(MAX_BATCH, 2 * self._asked))
        self._asked = ask
        return ask

    def surplus(self, now: float) -> list[Delivery]:
        """Messages that no handler here will come to soon, although others might; they leave the buffer."""
        crew = self._crew
        if not crew.buffer or crew.busy < crew.active * crew.slots:
            return []
        keep = round(self._pace.per_second * _SOON_SECONDS)
        given: dict[Delivery, None] = {}
        for unit in list(crew.buffer)[keep:]:
            delivery = unit.delivery
            # That it was given back unseen can only be noted on a message of ours: one of others would look suspect.
            again = not delivery.envelope.kennel and delivery.message.dequeue_count > 1
            if delivery.started or delivery.suspect or again or not delivery.held:
                continue
            if now - delivery.taken_at > _SOON_SECONDS:
                given[delivery] = None
        if given:
            kept = [unit for unit in crew.buffer if unit.delivery not in given]
            for unit in crew.buffer:
                if unit.delivery in given:
                    unit.drop()
            crew.buffer.clear()
            crew.buffer.extend(kept)
        return list(given)
