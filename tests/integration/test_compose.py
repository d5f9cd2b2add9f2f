"""The Compose file's services as plain processes: its own commands and settings, with the addresses of this machine."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.testing.azurite import Azurite
from tests.support.ports import free_port, wait_until_listening
from tests.support.processes import start_server, stop_server
from tests.support.readme import PROJECT
from tests.support.stack import Visitor, wait_until

ENTRYPOINTS = {
    "dashboard": ["uvicorn", "dashboard.asgi:application", "--lifespan", "on", "--no-access-log"],
    "worker": ["python", "-m", "coordinator", "--log-json"],
}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_services_of_the_compose_file_sell_every_order(
    own_azurite: Azurite, postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    ports = {"dashboard-1": free_port(), "dashboard-2": free_port()}
    here = {
        "/srv/data": str(tmp_path),
        "ws://proxy:8080": f"ws://127.0.0.1:{ports['dashboard-1']}",
        "redis://redis:6379/0": redis_url,
    }
    given = {
        "AZURE_STORAGE_CONNECTION_STRING": own_azurite.connection_string,
        "DATABASE_URL": postgres_url,
        "KENNEL_SECRET_KEY": "a key of the tests " * 3,
    }

    def local(text: str) -> str:
        for far, near in here.items():
            text = text.replace(far, near)
        return text.replace("$$", "$")

    services: dict[str, dict[str, Any]] = yaml.safe_load((PROJECT / "deploy" / "compose.yaml").read_text())[
        "services"
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KENNEL_", "AZURE_"))}
    clean |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}", "PYTHONPATH": str(PROJECT)}

    def environment(service: str) -> dict[str, str]:
        told = {name: local(str(value)) for name, value in services[service]["environment"].items()}
        return clean | told | {name: value for name, value in given.items() if name in told}

    def command(service: str, image: str = "") -> list[str]:
        entrypoint = services[service].get("entrypoint", ENTRYPOINTS.get(image, []))
        return [local(str(word)) for word in [*entrypoint, *services[service].get("command", [])]]

    with ExitStack() as running:

        def start(name: str, words: list[str], env: dict[str, str]) -> Path:
            log = tmp_path / f"{name}.log"
            process = start_server(
                ["sh", "-c", f'cd "{PROJECT}" && exec "$@"', "sh", *words], log=log, env=env
            )
            running.callback(stop_server, process)
            return log

        done = subprocess.run(
            command("setup"),
            env=environment("setup"),
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for name, port in ports.items():
            words = [*command(name, "dashboard"), "--host", "127.0.0.1", "--port", str(port)]
            log = start(name, words, environment(name))
            assert wait_until_listening(port, timeout_seconds=60), log.read_text()
        logs = [
            start(f"worker-{n}", command("worker", "worker"), environment("worker"))
            for n in range(services["worker"]["deploy"]["replicas"])
        ]
        wait_until(
            lambda: all("Connected to the hub" in log.read_text() for log in logs), "all are connected"
        )
        words = [re.sub("2000", "200", word) for word in command("producer")]
        subprocess.run(words, env=environment("producer"), cwd=PROJECT, check=True, timeout=60)
        users = {
            user["role"]: user for user in json.loads((tmp_path / "credentials.json").read_text())["users"]
        }
        olga = Visitor(
            f"http://127.0.0.1:{ports['dashboard-2']}",
            users["operator"]["name"],
            users["operator"]["password"],
        )
        olga.post("/gates/start-order-processing/unleash")
        wait_until(lambda: sold(tmp_path) == (200, 200), "every order is sold, with a number of its own")


def sold(folder: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(folder / "orders.sqlite3", timeout=30)) as connection:
        try:
            row = connection.execute(
                "SELECT count(DISTINCT order_id), count(DISTINCT number) FROM orders"
            ).fetchone()
        except sqlite3.OperationalError:
            return 0, 0
    return int(row[0]), int(row[1])
