"""The server is spared long searches for garbage, and what is told all the time makes no work for them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from coordinator.realtime import protocol
from dashboard.hub import background as lifespan


@pytest.fixture
def usual_garbage() -> Iterator[None]:
    before, switches = gc.get_threshold(), sys.getswitchinterval()
    yield
    sys.setswitchinterval(switches)
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_is_there_at_the_start_is_not_searched_for_garbage_again(usual_garbage: None) -> None:
    lifespan._spare_pauses()
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects(generation=2)) < 1_000
    assert gc.get_threshold()[0] == lifespan.YOUNG_OBJECTS
    assert gc.isenabled()


def test_threads_take_short_turns(usual_garbage: None) -> None:
    lifespan._spare_pauses()
    assert sys.getswitchinterval() == pytest.approx(lifespan.SWITCH_SECONDS)


def test_the_memory_of_large_answers_is_returned_where_the_c_library_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[int, int] = {}
    library = SimpleNamespace(mallopt=asked.__setitem__)
    monkeypatch.setattr(lifespan.ctypes, "CDLL", lambda name: library)
    lifespan._return_memory()
    assert asked == {-8: 2, -3: 128 * 1024}
    del library.mallopt
    lifespan._return_memory()  # another C library: nothing to ask


def test_a_heartbeat_leaves_nothing_to_search() -> None:
    state = protocol.WorkerState(
        gates=(protocol.GateStatus("sale", "closed", waiting=True),),
        listeners=(protocol.ListenerStatus("orders", 3, 5, 3, state="running"),),
        requests={"queue.GetMessages": 7},
    )
    told = protocol.decode_from_worker(protocol.encode(protocol.State(state)))
    assert isinstance(told, protocol.State)
    assert told.state == state
    assert not any(map(gc.is_tracked, (told, told.state, *told.state.gates, *told.state.listeners)))
