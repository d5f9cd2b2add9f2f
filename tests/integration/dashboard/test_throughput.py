"""What the dashboard says that handlers did, against what the handlers themselves counted, with kills and a restart."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from coordinator import Queue, Storage
from coordinator.config import StorageConfig
from coordinator.errors import StorageUnreachable
from coordinator.testing.azurite import Azurite
from tests.support.dashboard import TOKEN, Dashboard, Person, until
from tests.support.processes import start_server

QUEUE = "counted"
AHEAD = 400
# A heartbeat is a second; a crowded machine may be late, and a killed dashboard takes with it what it heard within 2 s.
SILENT_SECONDS = 5.0
WORDS = ("done", "failed", "retried")
# By process: what is in the sums of it. And the sums by minute and by hour.
READ = """
import json
from dashboard.models import PastWorker, Tally, TallyMark
pids = dict(PastWorker.objects.values_list("instance", "name"))
marks = {pids[m.instance].removeprefix("counted-"): json.loads(m.counted) for m in TallyMark.objects.all()}
sums = {s: {w: sum(t[w] for t in Tally.objects.filter(seconds=s).values()) for w in ("done", "failed", "retried")} for s in (60, 3600)}
timed = sum(sum(json.loads(t).values()) for t in Tally.objects.filter(seconds=60).values_list("durations", flat=True))
print(json.dumps([marks, sums, timed]))
"""


class Note(NamedTuple):
    """What a handler noted when it ended."""

    word: str
    item: str
    pid: str
    at: float


def _notes(log: Path) -> list[Note]:
    lines = (line.split() for line in log.read_text().splitlines())
    return [Note(word, item, pid, float(at)) for word, item, pid, at in lines]


def _is_up_to_a_moment(marks: dict[str, int], notes: list[Note], heard_until: float) -> bool:
    """Whether the figures are those of the first so many notes, in which all are that were made by that time."""
    said: Counter[str] = Counter()
    for number in range(len(notes) + 1):
        if all(said[word] == marks.get(word, 0) for word in WORDS):
            return all(note.at > heard_until for note in notes[number:])
        if number < len(notes):
            said[notes[number].word] += 1
    return False


async def _run(tmp_path: Path, connection_string: str, prefix: str, *, count: int, kills: int) -> None:
    log = tmp_path / "counted.log"
    config = StorageConfig(prefix=prefix)
    environment = {
        **os.environ,
        "AZURE_STORAGE_CONNECTION_STRING": connection_string,
        "KENNEL_PREFIX": prefix,
        "KENNEL_WORKER_TOKEN": TOKEN,
    }
    running: list[subprocess.Popen[bytes]] = []
    killed: dict[str, float] = {}

    with Dashboard(tmp_path, connection_string, prefix) as dashboard:
        environment["KENNEL_HUB_URL"] = dashboard.hub_url

        def start() -> None:
            command = [sys.executable, "-m", "tests.support.counted_worker", QUEUE, str(log)]
            running.append(start_server(command, log=tmp_path / "workers.log", env=environment))

        def done() -> int:
            return len({line.split()[1] for line in log.read_text().splitlines() if line.startswith("done")})

        try:
            async with Storage.from_connection_string(connection_string, config=config) as storage:
                queue = storage.queue(QUEUE, type=int)
                await queue.create()
                for _ in range(3):
                    start()
                put, left, restarted = 0, kills, False
                while True:
                    finished = done() if log.exists() else 0
                    if finished >= count:
                        break
                    more = min(count - put, AHEAD - (put - finished))
                    if more > 0:
                        for number in range(put, put + more, 20):
                            items = range(number, min(number + 20, put + more))
                            await asyncio.gather(*(_put(queue, item) for item in items))
                        put += more
                    if left and finished >= count * (kills - left + 1) / (kills + 2):
                        victim = running.pop(0)
                        victim.kill()
                        victim.wait()
                        killed[str(victim.pid)] = time.time()
                        start()
                        left -= 1
                    elif not restarted and finished >= count * (kills + 1) / (kills + 2):
                        dashboard.stop(kill=True)
                        dashboard.start()
                        restarted = True
                    await asyncio.sleep(0.05)
                assert (left, restarted) == (0, True), "the work was over too early: nothing was tested"
            # What a worker did while it heard no dashboard is in its next report.
            with Person(dashboard, "vera") as vera:
                await until(lambda: _present(vera) >= {f"counted-{process.pid}" for process in running})
            for process in running:
                process.terminate()
            for process in running:
                await asyncio.to_thread(process.wait, 60)
        finally:
            for process in running:
                process.kill()
                process.wait()
        notes = _notes(log)
        said = Counter((note.word, note.pid) for note in notes)
        living = {note.pid for note in notes} - killed.keys()

        def agrees() -> bool:
            marks = json.loads(dashboard.manage(code=READ))[0]
            return all(_of(marks, word, pid) == said[word, pid] for word in WORDS for pid in living)

        await until(agrees, seconds=30, what=f"{said} {dashboard.manage(code=READ)}")
        marks, sums, timed = json.loads(dashboard.manage(code=READ))
        unreported = 0
        for pid, at in killed.items():
            own = [note for note in notes if note.pid == pid]
            # Exact up to the last report, which is younger than that: no item is in the sums that was not processed.
            assert _is_up_to_a_moment(marks.get(pid, {}), own, at - SILENT_SECONDS), (marks.get(pid), own[-1])
            unreported += len(own) - sum(_of(marks, word, pid) for word in WORDS)
        for word in WORDS:
            total = sum(_of(marks, word, pid) for pid in marks)
            assert [sums["60"][word], sums["3600"][word]] == [total, total]
        everything = sum(said.values())
        assert sum(sums["60"].values()) == everything - unreported
        assert timed == everything - unreported
        with Person(dashboard, "vera") as vera:
            [row] = vera.get("/api/v1/throughput?seconds=3600").json()["throughput"]
            assert (row["queue"], row["handler"]) == (QUEUE, "count")
            assert [row[word] for word in WORDS] == [sums["60"][word] for word in WORDS]
            assert 0.002 <= row["handler_p50"] <= row["handler_p99"]
            said_so = f"{kills} worker processes ended without a last report"
            await until(lambda: said_so in vera.get("/throughput/").text)


async def _put(queue: Queue[int], item: int) -> None:
    """Until it is there; one that is there twice is counted twice, by handlers and dashboard alike."""
    while True:
        try:
            await queue.put(item)
        except StorageUnreachable:  # a busy emulator may not answer
            continue
        return


def _present(person: Person) -> set[str]:
    workers = person.get("/api/v1/fleet").json()["workers"]
    return {each["name"] for each in workers if each["presence"] == "ok"}


def _of(marks: dict[str, dict[str, int]], word: str, pid: str) -> int:
    return int(marks.get(pid, {}).get(word, 0))


@pytest.mark.timeout(300)
async def test_sums_agree_with_what_handlers_counted_with_kills_and_a_restart(
    tmp_path: Path, connection_string: str, storage_prefix: str
) -> None:
    await _run(tmp_path, connection_string, storage_prefix, count=800, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_sums_agree_with_what_handlers_counted_in_a_run_of_20_000(
    tmp_path: Path, storage_prefix: str
) -> None:
    # On disk: in memory Azurite answers nothing for a minute and more after so many messages.
    with Azurite(location=tmp_path / "azurite") as azurite:
        await _run(tmp_path, azurite.connection_string, storage_prefix, count=20_000, kills=8)
