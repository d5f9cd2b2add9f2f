"""Any order of grants, crashes, lost answers, returns and foreign writes: each number is granted once, and accounted for."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.sequences.allocator import RangeAllocator
from coordinator.sequences.grants import Grant
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
        grants = self.writers[place].reserve_ranges(count, 1 + more)
        self.bench.store._failures.clear()
        for grant in grants:
            for number in grant.numbers:
                assert number not in self.granted, (
                    f"{number} granted to {self.granted[number]} and {grant.owner.id}"
                )
                self.granted[number] = grant.owner.id
            self.held.append((place, grant))

    @rule(place=st.integers(0, 2))
    def tidy(self, place: int) -> None:
        self.writers[place].tidy()

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
    @rule(jump=st.integers(1, 50))
    def another_program_moves_the_counter(self, jump: int) -> None:
        # It wipes the metadata. Writers that live write down again what was there; what only dead ones knew is lost.
        on_blob = self.bench.book().counter().grants
        self.bench.store.overwrite(str(int(self.bench.store.get_data().data) + jump))
        self.foreign += jump
        for writer in self.writers.values():
            writer.tidy(all_of_it=True)
        for grant in on_blob:
            if self.bench.ledger.row(grant.key) is None:
                assert not any(writer._owner() == grant.owner for writer in self.writers.values())
                self.foreign += len(grant.numbers)
                for number in grant.numbers:
                    del self.granted[number]
                self.held = [(holder, held) for holder, held in self.held if held.nonce != grant.nonce]

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
