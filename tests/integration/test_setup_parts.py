"""The parts that tests and the demo stand on really run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from azure.storage.queue import QueueServiceClient
from playwright.async_api import Page

from coordinator.testing.azurite import Azurite, AzuriteError, next_free_port
from tests.support.ports import free_port, listens

PREFIXES_SEEN: set[str] = set()


def create_queue(azurite: Azurite, name: str) -> None:
    with QueueServiceClient.from_connection_string(azurite.connection_string) as service:
        service.create_queue(name)


def queue_names(azurite: Azurite) -> list[str]:
    with QueueServiceClient.from_connection_string(azurite.connection_string) as service:
        return [queue.name for queue in service.list_queues()]


def ends_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_azurite_answers_for_blobs_queues_and_tables(azurite: Azurite) -> None:
    assert sorted(azurite.ports) == ["blob", "queue", "table"]
    for port in azurite.ports.values():
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/devstoreaccount1?comp=list", timeout=5)
        assert refused.value.headers["Server"].startswith("Azurite")
        refused.value.close()


def test_azurite_stopped_and_started_keeps_its_ports(own_azurite: Azurite) -> None:
    before = own_azurite.connection_string
    own_azurite.stop()
    assert not any(listens(port) for port in own_azurite.ports.values())
    own_azurite.start()
    assert own_azurite.connection_string == before
    create_queue(own_azurite, "after-restart")


def test_a_temporary_azurite_does_not_stop_to_save_its_lists() -> None:
    with Azurite() as azurite:
        assert azurite._temporary is not None
        lists = Path(azurite._temporary.name) / "__azurite_db_queue__.json"
        create_queue(azurite, "not-saved")
        time.sleep(5.5)  # on disk Azurite saves every 5 s
        assert not lists.exists() or "not-saved" not in lists.read_text()


def test_azurite_on_disk_keeps_its_data_over_a_clean_stop(tmp_path: Path) -> None:
    with Azurite(location=tmp_path / "data") as azurite:
        create_queue(azurite, "kept")
    with Azurite(location=tmp_path / "data") as azurite:
        assert queue_names(azurite) == ["kept"]


def test_azurite_takes_the_next_free_port_and_says_so(own_azurite: Azurite) -> None:
    taken = own_azurite.ports["blob"]
    with Azurite(ports={"blob": taken}) as second:
        assert second.ports["blob"] > taken
        assert second.moved == {"blob": (taken, second.ports["blob"])}


def test_a_wanted_port_that_is_free_is_taken() -> None:
    wanted = next_free_port(free_port())
    with Azurite(ports={"queue": wanted}) as azurite:
        assert azurite.ports["queue"] == wanted
        assert azurite.moved == {}


def test_azurite_that_cannot_start_says_why(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(AzuriteError, match=r"cannot keep Azurite's data in .*file"):
        Azurite(location=blocked).start()


def test_azurite_ends_with_a_parent_that_is_killed() -> None:
    code = "from coordinator.testing.azurite import Azurite; a = Azurite().start(); print(a.pid, flush=True); input()"
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert parent.stdin is not None and parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    assert ends_within(pid, 10), f"Azurite (pid {pid}) outlived its parent"


@pytest.mark.parametrize("turn", range(3))
def test_each_test_has_a_prefix_of_its_own(storage_prefix: str, turn: int) -> None:
    assert storage_prefix not in PREFIXES_SEEN
    assert storage_prefix[0].isalpha() and storage_prefix.endswith("-")
    PREFIXES_SEEN.add(storage_prefix)


def test_postgres_answers(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("select 1").fetchone()
    assert row == (1,)


def test_redis_answers(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()


async def test_chromium_renders_a_page(page: Page) -> None:
    await page.set_content("<h1>Kennel</h1><script>document.title = 'live'</script>")
    assert await page.title() == "live"
    assert await page.locator("h1").text_content() == "Kennel"
