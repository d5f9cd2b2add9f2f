"""One worker's frames, and what somebody put into storage: every page, file, metric and list goes on, and tells the truth."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from coordinator.config import StorageConfig
from coordinator.realtime.protocol import GateStatus, State, WorkerState
from coordinator.storage import Storage
from tests.support.crowd import quantile_ms
from tests.support.dashboard import BareWorker, Dashboard, Person, until
from tests.support.hostile import GATE, flood_from, litter, post_odd_messages
from tests.support.reliability import Cell, Table

ADDRESSES = (
    *(
        "/",
        "/gates/",
        "/queues/",
        "/queues/orders-in/",
        "/queues/orders-in/messages",
        "/workers/",
        "/leaders/",
    ),
    *(
        "/leaders/?election=odd-4",
        "/sequences/",
        "/sequences/?sequence=odd-4",
        "/batches/",
        "/scaling/",
        "/cost/",
    ),
    *("/audit/", "/access/", "/help/", "/tv", "/search/?q=odd", "/metrics", "/healthz", "/audit.csv"),
    *(
        f"/tables/{name}.{form}"
        for name in (
            "gates",
            "queues",
            "workers",
            "leaders",
            "sequences",
            "batches",
            "sagas",
            "pools",
            "cost",
        )
        for form in ("csv", "json")
    ),
    *(
        f"/api/v1/{name}?limit=500"
        for name in ("gates", "queues", "workers", "leaders", "sequences", "batches", "sagas", "audit")
    ),
)


# --- what must hold -------------------------------------------------------------------------------------------------


class Watch:
    """Asks for every address in turn and keeps what was wrong."""

    def __init__(self, person: Person, good: BareWorker, token: str) -> None:
        self.person, self.good, self.token, self.rounds = person, good, token, 0
        self.faults: list[tuple[str, int, str]] = []
        self.presses: list[float] = []
        self.passes: list[float] = []

    def round(self) -> None:
        """A third of the addresses, in turn."""
        for address in ADDRESSES[self.rounds % 3 :: 3]:
            if address.startswith(("/api/", "/metrics")):
                headers = {"Authorization": f"Bearer {self.token}"}
                answer = requests.get(self.person.dashboard.url + address, headers=headers, timeout=20)
            else:
                answer = self.person.get(address)
            # The names of queues are read every ten seconds: a new one is not known at once.
            good = (200, 404) if address.startswith("/queues/orders") else (200,)
            if answer.status_code not in good or "cannot be drawn" in answer.text:
                self.faults.append((address, answer.status_code, answer.text[:300]))
        rows = {row["worker"]: row for row in self.person.get("/tables/workers.json").json()}
        told = rows.get("good", {})
        if (told.get("presence"), told.get("memory_bytes")) != ("ok", 123_456):
            self.faults.append(("good worker", 0, str(told)))
        self.rounds += 1

    def press(self) -> None:
        """Leash and unleash: how long the unleashing took with the page before and the page after it, and until a worker
        that waits had heard of it."""
        self.person.post(f"/gates/{GATE}/leash", {"reason": "between"})
        began = time.perf_counter()
        form = self.person.form("/gates/")
        pressed = time.perf_counter()
        answer = self.person.send(f"/gates/{GATE}/unleash", form)
        self.presses.append(time.perf_counter() - began)
        if answer.status_code != 200:
            self.faults.append(("unleash", answer.status_code, answer.text[:300]))
        # The worker reads its socket in another thread, which may be later than the answer to the press.
        patience = time.monotonic() + 5.0
        while (opened := self.good.opened_at(GATE, pressed)) is None and time.monotonic() < patience:
            time.sleep(0.002)
        if opened is None:
            self.faults.append(("unleash", 0, "the worker did not hear of it"))
        else:
            self.passes.append(opened - pressed)

    async def until_done(self, *work: Awaitable[Any]) -> None:
        todo = asyncio.ensure_future(asyncio.gather(*work))
        while True:
            for _ in range(6):
                await asyncio.to_thread(self.press)
            await asyncio.to_thread(self.round)
            if todo.done():
                await todo
                return


@pytest.mark.parametrize(
    ("frames", "blobs", "messages"),
    [
        pytest.param(240, 60, 30, id="short"),
        pytest.param(100_000, 1_000, 10_000, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
    ],
)
async def test_no_page_fails_whatever_a_worker_sends_and_whatever_storage_holds(
    tmp_path: Path, connection_string: str, storage_prefix: str, frames: int, blobs: int, messages: int
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    storage = Storage.from_connection_string(connection_string, config=StorageConfig(prefix=storage_prefix))
    own = Dashboard(tmp_path, connection_string, storage_prefix, {"KENNEL_API_PER_MINUTE": "100000"})
    with own, Person(own, "olga") as olga:
        async with storage, BareWorker(own, "good") as good:
            await until(lambda: good.heard)
            good.state = WorkerState(memory_bytes=123_456, gates=(GateStatus(GATE, "closed", waiting=True),))
            good.beat()
            await good.send(State(good.state))
            watch = Watch(
                olga, good, own.manage("worker_token", "create", "reader", "--scope", "read").split()[-1]
            )
            for _ in range(3 if frames < 1000 else 100):
                await asyncio.to_thread(watch.press)
            quiet, watch.presses = watch.presses, []
            quiet_passes, watch.passes = watch.passes, []
            assert own.process is not None
            process = psutil.Process(own.process.pid)
            await litter(storage, rng, blobs)
            await post_odd_messages(storage, rng, messages)
            spawned = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

            async def half() -> int:
                """Half of the frames; the memory of the dashboard after them."""
                told = own.port, own.prefix, rng.randrange(2**32), frames // 2, 4
                await watch.until_done(asyncio.get_running_loop().run_in_executor(spawned, flood_from, *told))
                return int(process.memory_info().rss)

            # The first half warms up; what the second, equal one adds is what would grow for ever.
            began = time.perf_counter()
            with spawned:
                before = await half()
                after = await half()
            took = time.perf_counter() - began
            while watch.rounds < 3:
                await asyncio.to_thread(watch.round)
            told = "; ".join(
                f"{len(some)} {name}: p50 {quantile_ms(some, 0.5):.0f}, p99 {quantile_ms(some, 0.99):.0f} ms"
                for name, some in (
                    ("presses quiet, until a worker heard", quiet_passes),
                    ("meanwhile, until a worker heard", watch.passes),
                    ("quiet, with both pages", quiet),
                    ("meanwhile, with both pages", watch.presses),
                )
            )
            print(
                f"{frames} frames in {took:.0f} s; {watch.rounds} rounds of {len(ADDRESSES)} addresses, a third each; "
                f"memory {before / 2**20:.1f} to {after / 2**20:.1f} MiB; {told}"
            )
            assert watch.faults == []
            assert good.closed is None
            shown = {gate["gate"]: gate for gate in olga.get("/tables/gates.json").json()}
            assert shown[GATE]["state"] == "open"
            assert shown[GATE]["epoch"] < 10_000
            assert any("unreadable" in (gate["problem"] or "") for gate in shown.values())
            # A short flood has hardly warmed it up.
            assert after < (before * 1.05 if frames >= 1000 else before * 1.25 + 16 * 2**20)
    assert "Traceback" not in own.said().replace("ConnectionClosed", ""), own.said()[-3000:]


# --- a gate's blob is touched -----------------------------------------------------------------------------------------

OUTCOME = "the page equals storage within 5 s, with the condition: epoch went back, storage was restored?"
UNREADABLE = "the page shows the gate's row as unreadable with the reason; all other rows stay current"
FORGED = "the page equals storage within 5 s; the next change begins again above every epoch that was counted"
TABLE = Table(
    "The gates that the dashboard shows",
    "Somebody changes the blob of a gate behind Kennel's back.",
    (
        Cell("an older version is restored", "a gate's blob", OUTCOME),
        Cell("it is deleted", "a gate's blob", OUTCOME),
        Cell("it is overwritten with garbage", "a gate's blob", UNREADABLE),
        Cell("its metadata is replaced", "a gate's blob", UNREADABLE),
        Cell("its epoch is raised to the largest there is", "a gate's blob", FORGED),
    ),
    order=62,
)


async def _restore(blob: Any) -> None:
    await blob.upload_blob(
        b'{"epoch": 1, "state": "open", "changed_at": 1e9, "by": "backup"}', overwrite=True
    )


async def _delete(blob: Any) -> None:
    await blob.delete_blob()


async def _garbage(blob: Any) -> None:
    await blob.upload_blob(b"no gate", overwrite=True)


async def _metadata(blob: Any) -> None:
    text = b'{"epoch": 9, "state": "open", "until": 1e300}'
    await blob.upload_blob(text, overwrite=True, metadata={"gate": text.decode()})


async def _raise(blob: Any) -> None:
    state = json.dumps({"epoch": 10**15, "state": "open", "changed_at": 1e9, "by": "script"})
    await blob.upload_blob(state.encode(), overwrite=True, metadata={"gate": state})


TOUCHES: dict[str, tuple[Callable[[Any], Awaitable[None]], str, str]] = {
    "an older version is restored": (_restore, "open", "went back"),
    "it is deleted": (_delete, "closed", "went back"),
    "it is overwritten with garbage": (_garbage, "unknown", "unreadable"),
    "its metadata is replaced": (_metadata, "unknown", "unreadable"),
    "its epoch is raised to the largest there is": (_raise, "open", ""),
}


@pytest.fixture(scope="module")
def dashboard(azurite: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    prefix = f"t{secrets.token_hex(5)}-"
    with Dashboard(tmp_path_factory.mktemp("dashboard"), azurite.connection_string, prefix) as running:
        yield running


@pytest.mark.parametrize("cell", TABLE.cells, ids=str)
async def test_the_page_shows_what_storage_holds(dashboard: Dashboard, cell: Cell) -> None:
    touch, state, problem = TOUCHES[cell.fault]
    name = f"gate-{list(TOUCHES).index(cell.fault)}"
    storage = Storage.from_connection_string(
        dashboard.connection_string, config=StorageConfig(prefix=dashboard.prefix)
    )

    def shown() -> dict[str, Any]:
        rows = {row["gate"]: row for row in olga.get("/tables/gates.json").json()}
        assert rows.get("untouched", {}).get("problem") in (None, "")
        return rows.get(name, {})

    async with storage:
        with Person(dashboard, "olga") as olga:
            await asyncio.to_thread(olga.post, "/gates/untouched/unleash")
            for verb in ("unleash", "leash", "unleash", "leash"):
                await asyncio.to_thread(olga.post, f"/gates/{name}/{verb}", {"reason": "stock check"})
            assert (shown()["state"], shown()["epoch"]) == ("closed", 4)
            await touch(storage.aio.blobs.get_blob_client(storage.config.container("gates"), name))
            await until(lambda: shown().get("state") == state and problem in shown()["problem"], seconds=5)
            page = olga.get("/gates/").text
            assert problem in page
            if problem == "went back":
                assert "storage was restored?" in olga.get("/").text
            # The next change goes above every epoch ever seen.
            await asyncio.to_thread(olga.post, f"/gates/{name}/leash", {"reason": "repair"})
            if problem != "went back":
                await until(lambda: (shown()["state"], shown()["problem"]) == ("closed", ""), seconds=5)
            await asyncio.to_thread(olga.post, f"/gates/{name}/unleash")
            await until(lambda: shown().get("state") == "open" and not shown()["problem"], seconds=5)
            assert 4 < shown()["epoch"] < 20
