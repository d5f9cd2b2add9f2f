"""The dashboard's image without a container engine: the Dockerfile's own lines, done in a folder, started as it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from coordinator import Storage
from coordinator.doctor import examine
from coordinator.testing.azurite import Azurite
from tests.support.ports import free_port, wait_until_listening
from tests.support.processes import start_server, stop_server
from tests.support.readme import PROJECT
from tests.support.stack import wait_until

HOST = "kennel.example.org"


def stage(name: str) -> str:
    """The lines of one stage, continued lines joined."""
    text = (PROJECT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    return re.split(r"^FROM ", text.split(f" AS {name}\n")[1], flags=re.MULTILINE)[0]


@dataclass
class Image:
    """A folder as the image has it, and the environment of its programs."""

    folder: Path
    env: dict[str, str]
    port: int

    def run(self, *command: str, **env: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.env | env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def get(self, path: str) -> requests.Response:
        return requests.get(f"http://127.0.0.1:{self.port}{path}", headers={"Host": HOST}, timeout=10)


@pytest.fixture
def image(azurite: Azurite, storage_prefix: str, tmp_path: Path) -> Image:
    """What the stage copies and runs."""
    folder = tmp_path / "srv"
    folder.mkdir()
    lines = stage("dashboard")
    for sources, target in re.findall(r"^COPY (?!--from)(.+) (\S+)$", lines, re.MULTILINE):
        for source in sources.split():
            here, there = PROJECT / source, folder / target
            if here.is_dir():
                shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(here, there)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KENNEL_", "AZURE_"))}
    for name in ("PYTHONPATH", "DJANGO_SETTINGS_MODULE", "DATABASE_URL", "DEBUG"):
        kept.pop(name, None)
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    image = Image(folder, kept, free_port())
    (folder / "node_modules").symlink_to(PROJECT / "node_modules")
    for script in re.findall(r"^RUN (?:--mount=\S+ )?(.+)$", lines, re.MULTILINE):
        image.run("sh", "-c", script)
    (folder / "node_modules").unlink()
    image.env |= {
        "AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string,
        "KENNEL_PREFIX": storage_prefix,
        "KENNEL_SECRET_KEY": "a key of the tests " * 3,
        "ALLOWED_HOSTS": f"{HOST},127.0.0.1",
        "KENNEL_HTTPS": "1",
        "DATABASE_URL": f"sqlite:///{tmp_path / 'dashboard.sqlite3'}",
        "PORT": str(image.port),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return image


@pytest.fixture
def served(image: Image, tmp_path: Path) -> Iterator[Image]:
    """The image's own command, after the first of the steps in docs/deployment.md."""
    image.run("python", "manage.py", "migrate", "--noinput")
    lines = stage("dashboard")
    entrypoint, command = (
        json.loads(re.findall(rf"^{word} (\[.*\])$", lines, re.MULTILINE)[0])
        for word in ("ENTRYPOINT", "CMD")
    )
    arguments = [*entrypoint, *command]
    arguments[arguments.index("0.0.0.0")] = "127.0.0.1"
    arguments[arguments.index("8000")] = str(image.port)
    shell = f"cd {shlex.quote(str(image.folder))} && exec {shlex.join(arguments)}"
    log = tmp_path / "log"
    process = start_server(["sh", "-c", shell], log=log, env=image.env)
    try:
        assert wait_until_listening(image.port, timeout_seconds=40), log.read_text()
        yield image
    finally:
        stop_server(process)


def test_the_image_has_all_that_the_dashboard_is_made_of(image: Image) -> None:
    everything = """
import dashboard.asgi
from pathlib import Path
from django.core.management import call_command
from django.template.loader import get_template
call_command("check")
found = [get_template(str(path.relative_to("templates"))) for path in Path("templates").rglob("*.html")]
print(len(found), "templates")
"""
    said = image.run("python", "-c", everything)
    assert re.search(r"^[1-9]\d+ templates$", said, re.MULTILINE)
    names = json.loads((image.folder / ".kennel" / "static" / "staticfiles.json").read_text())["paths"]
    for part in ("css/base.css", "uplot/uPlot.min.css"):
        assert (image.folder / ".kennel" / "static" / names[part]).is_file()


@pytest.mark.slow
async def test_the_image_serves_the_dashboard_and_a_worker_with_its_token_is_well(
    served: Image, storage_prefix: str
) -> None:
    written = {path for path in served.folder.rglob("*") if path.is_file()}
    served.run("python", "healthcheck.py")
    page = served.get("/accounts/login/")
    assert page.status_code == 200
    styles = re.findall(r'href="(/static/css/[^"]+)"', page.text)
    assert styles and all(re.search(r"\.[0-9a-f]{12}\.css$", style) for style in styles)
    for style in styles:
        answer = served.get(style)
        assert answer.status_code == 200 and "immutable" in answer.headers["Cache-Control"]
    token = served.run("python", "manage.py", "worker_token", "create", "production").split()[-1]
    wait_until(lambda: served.get("/readyz").json()["storage"], "the sampler has read storage")
    environ = served.env | {
        "KENNEL_HUB_URL": f"ws://127.0.0.1:{served.port}/ws/workers/",
        "KENNEL_WORKER_TOKEN": token,
    }
    async with Storage.from_env(environ) as storage:
        await storage.gate("start").close(by="adam", reason="not yet")
    findings = {finding.check: finding for finding in await examine(environ)}
    assert [found for found in findings.values() if found.verdict not in ("ok", "skipped")] == []
    assert findings["hub"].verdict == findings["dashboard"].verdict == "ok"
    stranger = {
        finding.check: finding for finding in await examine(environ | {"KENNEL_WORKER_TOKEN": "kw_no"})
    }
    assert "worker_token" in stranger["hub"].cure
    moved = {finding.check: finding for finding in await examine(environ | {"KENNEL_PREFIX": "moved-"})}
    assert "same KENNEL_PREFIX" in moved["hub"].cure
    assert {path for path in served.folder.rglob("*") if path.is_file()} == written, (
        "it writes where it may not"
    )
