"""Drivers on real processes and a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.errors import ConfigurationError, StorageUnreachable
from coordinator.scaling.azure import (
    ScalingFigure,
    list_scaling,
    make_scaling_agent,
    read_figure,
    read_policy,
    save_policy,
)
from coordinator.scaling.decision import Observation
from coordinator.scaling.drivers import DryRunDriver
from coordinator.scaling.figure import figure_app
from coordinator.scaling.kubernetes import DELETION_COST, MARKED, KubernetesDriver, KubernetesError
from coordinator.scaling.local import LocalProcessDriver
from coordinator.scaling.observing import QueueObserver
from coordinator.scaling.policy import ScalingPolicy

POLITE = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
)


class Fleet:
    """Local drivers of one pool; all processes end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drivers: list[LocalProcessDriver] = []
        self.leaders: set[str] = set()

    def driver(self, program: str = POLITE, **options: Any) -> LocalProcessDriver:
        async def leaders() -> set[str]:
            return self.leaders

        driver = LocalProcessDriver(
            "pool", [sys.executable, "-S", "-c", program], state=self.folder, leaders=leaders, **options
        )
        self.drivers.append(driver)
        return driver

    def pids(self) -> dict[str, int]:
        return {each["name"]: each["pid"] for each in json.loads((self.folder / "pool.json").read_text())}


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    for driver in fleet.drivers:
        driver._drain_seconds, driver._kill_seconds = 0.5, 0.0
        await driver.close()


async def ended(pid: int) -> bool:
    for _ in range(200):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_processes_are_started_drained_and_named(fleet: Fleet) -> None:
    driver = fleet.driver()
    await driver.scale(3)
    assert (await driver.actual(), driver.names()) == (3, ["pool-1", "pool-2", "pool-3"])
    pids = fleet.pids()
    assert psutil.Process(pids["pool-2"]).environ()["KENNEL_WORKER_NAME"] == "pool-2"
    await driver.scale(1)
    assert (await driver.actual(), driver.names()) == (1, ["pool-1"])
    assert await ended(pids["pool-3"])
    assert psutil.pid_exists(pids["pool-1"])


async def test_the_leader_stays_as_long_as_another_can_go(fleet: Fleet) -> None:
    driver = fleet.driver()
    await driver.scale(3)
    fleet.leaders = {"pool-3"}
    await driver.scale(1)
    assert driver.names() == ["pool-3"]
    await driver.scale(0)
    assert driver.names() == []


async def test_the_idle_leave_first(fleet: Fleet) -> None:
    async def jobs() -> dict[str, int]:
        return {"pool-3": 2, "pool-2": 1}

    driver = fleet.driver(jobs=jobs)
    await driver.scale(3)
    await driver.scale(2)
    assert driver.names() == ["pool-2", "pool-3"]
    await driver.scale(1)
    assert driver.names() == ["pool-3"]


async def test_a_process_that_will_not_drain_is_killed_in_the_end(fleet: Fleet) -> None:
    driver = fleet.driver(STUBBORN, drain_seconds=0.2, kill_seconds=0.1)
    await driver.scale(1)
    pid = fleet.pids()["pool-1"]
    await asyncio.sleep(0.3)
    await driver.scale(0)
    assert (await driver.actual(), psutil.pid_exists(pid)) == (0, True)
    await asyncio.sleep(0.4)
    await driver.scale(0)
    assert await ended(pid)


async def test_who_takes_over_finds_the_processes_and_replaces_the_dead(fleet: Fleet) -> None:
    await fleet.driver().scale(3)
    before = fleet.pids()
    successor = fleet.driver()
    assert await successor.actual() == 3
    psutil.Process(before["pool-2"]).send_signal(signal.SIGKILL)
    assert await ended(before["pool-2"])
    assert await successor.actual() == 2
    await successor.scale(3)
    after = fleet.pids()
    assert (after["pool-1"], after["pool-3"]) == (before["pool-1"], before["pool-3"])
    assert after["pool-2"] != before["pool-2"]


async def test_a_process_whose_birth_nobody_lived_to_note_is_found(fleet: Fleet) -> None:
    await fleet.driver().scale(2)
    known = json.loads((fleet.folder / "pool.json").read_text())
    unnoted = [known[0], {**known[1], "pid": 0, "born": 0.0}]
    (fleet.folder / "pool.json").write_text(json.dumps(unnoted))
    successor = fleet.driver()
    assert (await successor.actual(), successor.names()) == (2, ["pool-1", "pool-2"])
    await successor.scale(2)
    assert json.loads((fleet.folder / "pool.json").read_text()) == known


async def test_a_process_of_the_same_number_but_another_birth_is_left_alone(fleet: Fleet) -> None:
    driver = fleet.driver()
    await driver.scale(1)
    known = json.loads((fleet.folder / "pool.json").read_text())
    stranger = {**known[0], "born": known[0]["born"] - 100}
    (fleet.folder / "pool.json").write_text(json.dumps([stranger]))
    assert await driver.actual() == 0
    await driver.scale(0)
    assert psutil.pid_exists(known[0]["pid"])
    (fleet.folder / "pool.json").write_text(json.dumps(known))


async def test_a_damaged_state_file_is_named(fleet: Fleet) -> None:
    (fleet.folder / "pool.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"pool\.json is damaged"):
        await LocalProcessDriver("pool", ["true"], state=fleet.folder).actual()


class FakeCluster:
    """As much of the Kubernetes API as a deployment's scale needs: versions, conflicts, merge patches, tokens."""

    def __init__(self) -> None:
        self.replicas, self.version = 3, 7
        self.conflicts = 0
        self.pods: dict[str, dict[str, str]] = {"web-a": {}, "web-b": {}, "web-c": {DELETION_COST: "1000"}}
        self.asked: list[str] = []

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        scale = "/apis/apps/v1/namespaces/shop/deployments/web/scale"
        app.router.add_get(scale, self._get)
        app.router.add_patch(scale, self._patch)
        app.router.add_get("/api/v1/namespaces/shop/pods", self._list)
        app.router.add_patch("/api/v1/namespaces/shop/pods/{name}", self._annotate)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path.rsplit('/', 1)[-1]}")
        if request.headers.get("Authorization") != "Bearer s3cret":
            return self._failure(401, "Unauthorized")
        if request.method == "PATCH" and request.content_type != "application/merge-patch+json":
            return self._failure(415, "the body of the request was in an unknown format")
        try:
            answer: web.StreamResponse = await handler(request)
        except web.HTTPNotFound:
            return self._failure(404, "the server could not find the requested resource")
        return answer

    def _failure(self, code: int, message: str) -> web.Response:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
        return web.json_response(status, status=code)

    def _scale(self) -> web.Response:
        return web.json_response(
            {
                "kind": "Scale",
                "apiVersion": "autoscaling/v1",
                "metadata": {"name": "web", "namespace": "shop", "resourceVersion": str(self.version)},
                "spec": {"replicas": self.replicas} if self.replicas else {},
                "status": {"replicas": self.replicas, "selector": "app=web"},
            }
        )

    async def _get(self, request: web.Request) -> web.Response:
        return self._scale()

    async def _patch(self, request: web.Request) -> web.Response:
        patch = await request.json()
        if self.conflicts:
            self.conflicts -= 1
            self.version += 1
        if patch["metadata"]["resourceVersion"] != str(self.version):
            return self._failure(
                409, "the object has been modified; please apply your changes to the latest version"
            )
        self.replicas = patch["spec"]["replicas"]
        self.version += 1
        return self._scale()

    async def _list(self, request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "app=web"
        items = [
            {"metadata": {"name": name, **({"annotations": notes} if notes else {})}}
            for name, notes in self.pods.items()
        ]
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "items": items})

    async def _annotate(self, request: web.Request) -> web.Response:
        notes = self.pods[request.match_info["name"]]
        for name, value in (await request.json())["metadata"]["annotations"].items():
            if value is None:
                notes.pop(name, None)
            else:
                notes[name] = value
        return web.json_response({"kind": "Pod", "apiVersion": "v1"})


@pytest.fixture
async def cluster() -> AsyncIterator[tuple[FakeCluster, str]]:
    cluster = FakeCluster()
    runner = web.AppRunner(cluster.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield cluster, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_deployment_is_scaled_out_and_in_and_to_nothing(cluster: tuple[FakeCluster, str]) -> None:
    fake, url = cluster
    driver = KubernetesDriver("web", namespace="shop", url=url, token="s3cret")
    assert await driver.actual() == 3
    for wanted in (5, 2, 0, 1):
        await driver.scale(wanted)
        assert (fake.replicas, await driver.actual()) == (wanted, wanted)
    fake.asked.clear()
    await driver.scale(1)
    assert fake.asked == ["GET scale"]


async def test_before_a_scale_in_the_busy_are_marked_dear_leaders_dearest_and_the_idle_cheap(
    cluster: tuple[FakeCluster, str],
) -> None:
    fake, url = cluster

    async def leaders() -> set[str]:
        return {"web-b"}

    running = {"web-a": 3}

    async def jobs() -> dict[str, int]:
        return running

    driver = KubernetesDriver("web", namespace="shop", url=url, token="s3cret", leaders=leaders, jobs=jobs)
    fake.pods["web-d"] = {DELETION_COST: "7"}
    await driver.scale(4)
    assert "GET pods" not in fake.asked
    await driver.scale(3)
    busy = {DELETION_COST: "3", MARKED: "kennel"}
    leading = {DELETION_COST: "1000000", MARKED: "kennel"}
    other = {DELETION_COST: "7"}
    assert fake.pods == {"web-a": busy, "web-b": leading, "web-c": {}, "web-d": other}
    running.clear()
    await driver.scale(1)
    assert fake.pods == {"web-a": {}, "web-b": leading, "web-c": {}, "web-d": other}
    assert fake.asked.index("GET pods") < len(fake.asked) - 1 - fake.asked[::-1].index("PATCH scale")


async def test_a_conflict_with_another_writer_is_tried_again(cluster: tuple[FakeCluster, str]) -> None:
    fake, url = cluster
    driver = KubernetesDriver("web", namespace="shop", url=url, token="s3cret")
    fake.conflicts = 2
    await driver.scale(6)
    assert fake.replicas == 6
    fake.conflicts = 9
    with pytest.raises(KubernetesError, match="409 the object has been modified"):
        await driver.scale(7)


async def test_what_the_cluster_refuses_is_said_without_the_token(cluster: tuple[FakeCluster, str]) -> None:
    _, url = cluster
    with pytest.raises(KubernetesError, match="401 Unauthorized") as raised:
        await KubernetesDriver("web", namespace="shop", url=url, token="wrong-t0ken").actual()
    assert "t0ken" not in str(raised.value)
    with pytest.raises(KubernetesError, match="404"):
        await KubernetesDriver("none", namespace="shop", url=url, token="s3cret").actual()
    with pytest.raises(KubernetesError, match="no answer"):
        await KubernetesDriver("web", url="http://127.0.0.1:9").actual()


async def test_a_token_on_disk_is_read_anew(cluster: tuple[FakeCluster, str], tmp_path: Path) -> None:
    _, url = cluster
    file = tmp_path / "token"
    file.write_text("stale")
    driver = KubernetesDriver("web", namespace="shop", url=url, token_file=file)
    with pytest.raises(KubernetesError, match="401"):
        await driver.actual()
    file.write_text("s3cret\n")
    assert await driver.actual() == 3


class Tenure:
    epoch = 1

    def check(self, *, needs_seconds: float = 0.0) -> None: ...


async def test_an_agent_on_storage_follows_a_queue_and_the_policy_that_an_operator_stored(
    connection_string: str, storage_prefix: str
) -> None:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        assert await list_scaling(storage) == []
        assert await read_figure(storage, "billing") is None
        queue = storage.queue(f"{storage_prefix}work", type=int)
        policy = ScalingPolicy(maximum=10, target_seconds=10, boot_seconds=0, instance_per_second=1)
        driver = DryRunDriver()
        agent = make_scaling_agent(storage, "billing", driver, observe=QueueObserver(queue), policy=policy)
        await agent.step(Tenure())
        for number in range(35):
            await queue.put(number)
        await agent.step(Tenure())
        (wanted,) = driver.asked
        assert wanted in (4, 5)  # 35 to do within 9.5 s, at 1/s
        figure = await read_figure(storage, "billing")
        assert figure is not None
        assert figure.wanted == wanted
        assert figure.age_seconds < 30
        assert await save_policy(storage, "billing", ScalingPolicy(maximum=2), by="olga") is None
        assert await save_policy(storage, "billing", ScalingPolicy(maximum=3), by="olga") == ScalingPolicy(
            maximum=2
        )
        assert await read_policy(storage, "billing") == ScalingPolicy(maximum=3)
        await agent.step(Tenure())
        assert driver.asked == [wanted, 3]
        assert [(each.pool, each.wanted) for each in await list_scaling(storage)] == [("billing", 3)]
        changes = await agent.history.changes()
        assert [(each.previous, each.wanted) for each in changes] == [(wanted, 3), (0, wanted)]


async def test_a_put_into_an_idle_queue_wakes_the_agent_within_a_second(
    connection_string: str, storage_prefix: str
) -> None:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        queue = storage.queue(f"{storage_prefix}work", type=int)
        await queue.create()
        driver, asked = DryRunDriver(), asyncio.Event()
        remember = driver.scale

        async def scale(wanted: int) -> None:
            await remember(wanted)
            asked.set()

        driver.scale = scale  # type: ignore[method-assign]
        looked = asyncio.Event()
        observe = QueueObserver(queue)

        async def observed(actual: int) -> Observation:
            seen = await observe(actual)
            looked.set()
            return seen

        agent = make_scaling_agent(
            storage,
            "billing",
            driver,
            observe=observed,
            policy=ScalingPolicy(),
            queues=[queue.name],
            every_seconds=600,
        )
        leading = asyncio.create_task(agent.lead(Tenure()))
        try:
            async with asyncio.timeout(30):
                await looked.wait()
                began = time.monotonic()
                await queue.put(1)
                await asked.wait()
            assert driver.asked == [1]
            # Half a second between two looks, and what the requests take on a busy machine; polling would take 600 s.
            assert time.monotonic() - began < 10
        finally:
            leading.cancel()


async def test_the_figure_for_keda_is_answered_with_its_age_and_refused_when_it_is_old() -> None:
    figures = {"billing": ScalingFigure("billing", 3, 4.25), "old": ScalingFigure("old", 9, 500.0)}

    async def read(pool: str) -> ScalingFigure | None:
        if pool == "away":
            raise StorageUnreachable("no answer")
        return figures.get(pool)

    runner = web.AppRunner(figure_app(read, token="s3cret"))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/scaling/"
    try:
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer s3cret"}) as session:

            async def ask(pool: str) -> tuple[int, Any]:
                async with session.get(url + pool) as answer:
                    return answer.status, await answer.json()

            assert await ask("billing") == (200, {"wanted": 3, "age_seconds": 4.25})
            assert await ask("old") == (503, {"error": "the figure is 500 s old: no agent runs"})
            assert (await ask("none"))[0] == 404
            assert (await ask("away"))[0] == 503
            async with session.get(url + "billing", headers={"Authorization": "Bearer x"}) as answer:
                assert answer.status == 401
    finally:
        await runner.cleanup()


async def test_all_are_drained_though_nobody_can_tell_who_leads(tmp_path: Path) -> None:
    async def leaders() -> set[str]:
        raise StorageUnreachable("no answer")

    driver = LocalProcessDriver(
        "pool", [sys.executable, "-S", "-c", POLITE], state=tmp_path, leaders=leaders, drain_seconds=5.0
    )
    await driver.scale(2)
    pids = driver.pids()
    await driver.close()
    assert all([await ended(pid) for pid in pids.values()])
