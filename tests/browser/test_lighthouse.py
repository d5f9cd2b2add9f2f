"""What Lighthouse finds on every page, on a phone and on a desk: speed, accessibility, layout shifts, compression.

Only in the slow form, page by page (`-k overview`), since Lighthouse alone is 185 MB and takes a quarter of a minute for a page. The default run has tests
of the same promises: nothing that jumps and compressed text (test_phone, test_compression), axe on each page (test_pages).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import async_playwright

from scripts.screenshots import PAGES
from tests.browser.conftest import signed_in
from tests.support.browser import LAUNCH_ARGS
from tests.support.stack import LiveStack

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / ".kennel" / "lighthouse"
FORMS = {"mobile": [], "desktop": ["--preset=desktop"]}
# Whatever else runs on the machine only lowers the score of a page, so its best of a few is nearest to the page's own.
TRIES = 3


def lighthouse() -> Path:
    """The program, installed once into this clone."""
    INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / "tests" / "lighthouse" / name, INSTALLED / name)
    program = INSTALLED / "node_modules" / "lighthouse" / "cli" / "index.js"
    if not program.exists():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=INSTALLED, check=True)
    return program


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def examine(program: Path, url: str, port: int, form: str) -> dict[str, Any]:
    command = [
        "node",
        str(program),
        url,
        "--port",
        str(port),
        "--disable-storage-reset",
        "--quiet",
        "--output=json",
    ]
    command += ["--only-categories=performance,accessibility", *FORMS[form]]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return json.loads(out) if process.returncode == 0 else {"failed": err.decode()[-500:]}


def faults(report: dict[str, Any]) -> list[str]:
    if "failed" in report:  # it missed the start of the page
        return [report["failed"]]
    scores = {name: each["score"] for name, each in report["categories"].items()}
    audits = report["audits"]
    shift = audits["cumulative-layout-shift"]["numericValue"]
    plain = audits["uses-text-compression"]["details"]["items"]
    found = []
    if scores["performance"] < 0.95:
        found.append(f"performance {scores['performance']}")
    if scores["accessibility"] < 1.0:
        found.append(f"accessibility {scores['accessibility']}")
    if shift > 0.05:
        found.append(f"layout shift {shift:.3f}")
    if plain:
        found.append(f"not compressed: {[item['url'] for item in plain]}")
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in PAGES if name != "not-found"])
async def test_lighthouse_finds_every_page_quick_steady_and_usable_by_all(
    chromium: Path, stack: LiveStack, tmp_path: Path, name: str
) -> None:
    program, port, bad, path = lighthouse(), free_port(), [], PAGES[name]
    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            tmp_path, executable_path=chromium, args=[*LAUNCH_ARGS, f"--remote-debugging-port={port}"]
        )
        await signed_in(await context.new_page(), stack, "admin")
        for form in FORMS:
            for _ in range(TRIES):
                report = await examine(program, stack.url + path, port, form)
                found = faults(report)
                if not found:
                    break
            if not report.get("finalDisplayedUrl", "").startswith(stack.url + path.split("?")[0]):
                found.append(f"came to {report.get('finalDisplayedUrl')}")
            scores = [each["score"] for each in report.get("categories", {}).values()]
            print(f"{name}, {form}: {scores} {'; '.join(found)}", flush=True)
            bad += [f"{name} ({path}), {form}: {each}" for each in found]
        await context.close()
    assert not bad, "\n".join(bad)
