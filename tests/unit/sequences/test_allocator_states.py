"""Any order of grants, crashes, lost answers, returns and foreign writes: each number is granted once, and accounted for."""

from __future__ import annotations

import contextlib
import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.errors import NotFound, SequenceLowered
from coordinator.sequences.allocator import RangeAllocator
from coordinator.sequences.grants import FREE, Grant
from coordinator.sequences.store import Snapshot
from tests.unit.sequences.bench import Bench


class Fleet(RuleBasedStateMachine):
    """Writers that come, go, crash and meet lost answers; a foreign program beside them. Numbers are granted once."""

    @initialize()
    def begin(self) -> None:
        self.bench = Bench()
        self.names = itertools.count()
        self.writers: dict[int, RangeAllocator] = {}
        self.held: list[tuple[int, Grant]] = []
        self.granted: dict[int, str] = {}
        self.foreign = 0
        self.backups: list[Snapshot] = []
        for place in range(3):
            self.restart(place)

    @rule(place=st.integers(0, 2))
    def restart(self, place: int) -> None:
        self.writers[place] = self.bench.writer(f"w{place}-{next(self.names)}")
        self.held = [(holder, grant) for holder, grant in self.held if holder != place]

    @rule(
        place=st.integers(0, 2),
        count=st.integers(1, 30),
        failures=st.lists(st.booleans(), max_size=3),
        more=st.integers(0, 3),
    )
    def reserve(self, place: int, count: int, failures: list[bool], more: int) -> None:
        for carried_out in failures:
            self.bench.store.lose_answer(carried_out=carried_out)
        grants = [self.writers[place].reserve(count) for _ in range(1 + more)]
        self.bench.store._failures.clear()
        for grant in grants:
            for number in grant.numbers:
                assert number not in self.granted, (
                    f"{number} granted to {self.granted[number]} and {grant.owner.id}"
                )
                self.granted[number] = grant.owner.id
            self.held.append((place, grant))

    @rule(place=st.integers(0, 2))
    def settle(self, place: int) -> None:
        self.writers[place].settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def use_up(self, data: st.DataObject) -> None:
        place, grant = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.writers[place].used(grant)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        place, grant = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        through = data.draw(st.integers(grant.first - 1, grant.last))
        if through == grant.last:
            self.writers[place].used(grant)
            return
        self.writers[place].give_back([(grant, through)])
        for number in range(through + 1, grant.last + 1):
            del self.granted[number]

    @precondition(lambda self: self.granted)
    @rule(advance=st.integers(1, 50))
    def another_program_moves_the_counter(self, advance: int) -> None:
        # It wipes the metadata, which knows nothing that was issued and is not in the ledger.
        self.bench.store.overwrite(str(int(self.bench.store.get_data().data) + advance))
        self.foreign += advance

    @rule()
    def make_a_backup(self) -> None:
        with contextlib.suppress(NotFound):
            self.backups.append(self.bench.store.get_data())

    @precondition(lambda self: self.backups)
    @rule(
        place=st.integers(0, 2),
        data=st.data(),
        number=st.none() | st.integers(1, 60),
        count=st.integers(1, 30),
    )
    def somebody_restores_or_lowers_the_counter_and_repairs_it(
        self, place: int, data: st.DataObject, number: int | None, count: int
    ) -> None:
        backup = data.draw(st.sampled_from(self.backups))
        if number is None:
            self.bench.store.overwrite(backup.data, backup.metadata)
        elif number < int(self.bench.store.get_data().data):
            self.bench.store.overwrite(str(number))
        for _ in range(2):
            with contextlib.suppress(SequenceLowered):
                grant = self.writers[place].reserve(count)
                taken = [number for number in grant.numbers if number in self.granted]
                assert not taken, f"{taken} were granted to {self.granted[taken[0]]}"
                self.granted |= dict.fromkeys(grant.numbers, grant.owner.id)
                self.held.append((place, grant))
        self.bench.book().repair(self.bench.book().plan_repair())
        self.foreign = int(self.bench.store.get_data().data) - 1 - len(self.granted) - self.free

    @property
    def free(self) -> int:
        """Numbers that were returned and nobody has."""
        return sum(len(row.numbers) for row in self.bench.ledger.rows() if row.outcome == FREE)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if not self.granted:
            return
        report = self.bench.book().verify()
        assert report.is_ok, report.summary
        assert report.unattributed == self.foreign

    def teardown(self) -> None:
        for number, owner in list(self.granted.items())[::7]:
            holder = self.bench.book().holder(number)
            assert holder is not None
            assert holder.owner.id == owner


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
