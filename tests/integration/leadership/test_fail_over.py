"""Elections of real processes that are killed, stopped and stalled. One play of 20 s, watched by several tests."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.testing.azurite import Azurite
from coordinator.testing.faults import DROP_ANSWER, FaultProxy
from tests.support.fleet import Fleet, fleet

LEASE = 15.0
# Where the machine is busy, a renewal is late, and the standby finds the end of that lease at its next check.
PATIENCE = 4 * LEASE
KILLED, STOPPED, STALLED = 20, 40, 5


@dataclass
class Pair:
    """Two processes that compete for the same elections; `first` led them all."""

    names: list[str]
    ledger: Path
    first: Fleet
    second: Fleet
    struck_at: float = 0.0

    def rows(self) -> dict[str, list[int]]:
        """Epochs of each election's writes, in the order in which they were committed."""
        connection = sqlite3.connect(self.ledger, timeout=30)
        found: dict[str, list[int]] = {name: [] for name in self.names}
        for name, epoch in connection.execute("SELECT name, epoch FROM rows ORDER BY n"):
            found[name].append(epoch)
        connection.close()
        return found


@dataclass
class Play:
    killed: Pair
    stopped: Pair
    stalled: Pair
    unlucky: Fleet
    proxy: FaultProxy


def led(nodes: Fleet) -> set[str]:
    return {line["name"] for line in nodes.events("begin")}


async def strike(pair: Pair, number: int) -> None:
    pair.struck_at = time.time()
    for pid in {line["pid"] for line in pair.first.told}:
        os.kill(pid, number)


def first_writes_in_order(pair: Pair) -> None:
    for name, epochs in pair.rows().items():
        assert epochs == sorted(epochs), f"{name}: an earlier term wrote after a later one"
        assert len(set(epochs)) >= 2, f"{name}: {epochs}"


async def start(
    stack: AsyncExitStack, connection: str, prefix: str, ledger: Path, names: list[str], node: str
) -> Fleet:
    nodes = fleet(
        connection,
        prefix,
        "lead",
        names=",".join(names),
        node=node,
        ledger=ledger,
        spread=5.0,
        lease_seconds=15,
    )
    return await stack.enter_async_context(nodes)


async def make_pair(
    stack: AsyncExitStack, azurite: Azurite, prefix: str, folder: Path, what: str, number: int
) -> Pair:
    names, ledger = [f"{what}-{index}" for index in range(number)], folder / f"{what}.sqlite3"
    connection = azurite.connection_string
    first = await start(stack, connection, prefix, ledger, names, f"{what}-first")
    await first.until(lambda: len(first.events("begin")) == number, f"the first of {what} leads all", 90)
    return Pair(names, ledger, first, await start(stack, connection, prefix, ledger, names, f"{what}-second"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def play(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Play]:
    folder = tmp_path_factory.mktemp("elections")
    prefix = f"t{os.getpid()}-"
    with FaultProxy(azurite.connection_string) as proxy:
        async with AsyncExitStack() as stack:

            async def pair(what: str, number: int) -> Pair:
                return await make_pair(stack, azurite, prefix, folder, what, number)

            killed, stopped, stalled = await asyncio.gather(
                pair("killed", KILLED), pair("stopped", STOPPED), pair("stalled", STALLED)
            )
            unlucky = await start(
                stack, proxy.connection_string, prefix, folder / "unlucky.sqlite3", ["unlucky-0"], "unlucky"
            )
            await unlucky.until(lambda: unlucky.events("begin"), "the unlucky node leads")
            proxy.times(2, DROP_ANSWER, service="blob", method="PUT", path="comp=lease")
            # The second nodes look at all elections for a while first, as standbys do.
            await asyncio.sleep(6)
            await strike(killed, signal.SIGKILL)
            await strike(stopped, signal.SIGSTOP)
            await strike(stalled, signal.SIGUSR2)
            for part in (killed, stopped, stalled):
                await part.second.until(
                    lambda part=part: len(led(part.second)) == len(part.names),  # type: ignore[misc]
                    "the second leads all",
                    PATIENCE,
                )
            await asyncio.sleep(max(0.0, stopped.struck_at + LEASE + 3 - time.time()))
            await strike_again(stopped)
            await stalled.first.until(
                lambda: len(stalled.first.events("end")) == STALLED, "the stalled node has noticed", 10
            )
            await stopped.first.until(
                lambda: len(stopped.first.events("end")) == STOPPED, "the stopped node has noticed", 10
            )
            await asyncio.sleep(1.5)
            yield Play(killed, stopped, stalled, unlucky, proxy)


async def strike_again(pair: Pair) -> None:
    for pid in {line["pid"] for line in pair.first.told}:
        os.kill(pid, signal.SIGCONT)


# At a busy moment twenty leaders take minutes to come up.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest.mark.seconds
async def test_after_kill_9_another_leads_within_a_lease_and_a_second(play: Play) -> None:
    late = [line["at"] - play.killed.struck_at for line in play.killed.second.events("begin")]
    assert len(late) == KILLED
    assert max(late) <= LEASE + 1.0
    first_writes_in_order(play.killed)


async def test_a_leader_that_was_stopped_past_its_lease_writes_nothing_after_its_successor(
    play: Play,
) -> None:
    first_writes_in_order(play.stopped)
    ends = play.stopped.first.events("end")
    assert len(ends) == STOPPED
    assert not any(line["held"] for line in ends)


async def test_a_leader_whose_event_loop_blocks_is_over_before_its_lease_and_writes_nothing_late(
    play: Play,
) -> None:
    first_writes_in_order(play.stalled)
    stalls = play.stalled.first.events("stalled")
    assert {line["name"] for line in stalls} == set(play.stalled.names)
    begun = {line["name"]: line["at"] for line in play.stalled.second.events("begin")}
    for line in stalls:
        assert not line["held"]
        assert line["at"] < begun[line["name"]], "the watchdog was later than the successor"


async def test_a_lost_answer_to_a_renewal_ends_no_term(play: Play) -> None:
    assert len(play.proxy.applied) == 2
    assert [line["epoch"] for line in play.unlucky.events("begin")] == [1]
    assert not play.unlucky.events("end")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_two_hundred_stopped_leaders_write_nothing_after_their_successors(
    azurite: Azurite, tmp_path: Path
) -> None:
    for number in range(5):
        async with AsyncExitStack() as stack:
            pair = await make_pair(stack, azurite, f"s{os.getpid()}-", tmp_path, f"round{number}", 40)
            await asyncio.sleep(6)
            await strike(pair, signal.SIGSTOP)
            await pair.second.until(
                lambda pair=pair: len(led(pair.second)) == 40,  # type: ignore[misc]
                "the second leads all",
                PATIENCE,
            )
            await asyncio.sleep(max(0.0, pair.struck_at + LEASE + 2 - time.time()))
            await strike_again(pair)
            await asyncio.sleep(3)
            first_writes_in_order(pair)
            pair.first.signal(signal.SIGKILL)
            pair.second.signal(signal.SIGKILL)
