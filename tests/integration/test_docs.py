"""The documentation builds as a site without a dead link, and what it tells people to type works."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import coordinator
from coordinator import Storage, Worker
from coordinator.__main__ import main
from coordinator.errors import KennelError
from coordinator.sequences.ledger import open_book
from coordinator.testing.azurite import Azurite
from tests.support.readme import PROJECT

MKDOCS = Path(sys.executable).with_name("mkdocs")
OUTSIDE = ("README.md", "SECURITY.md", "CHANGELOG.md")
HOSTS = {
    "squidfunk.github.io",
    "semver.org",
    "docs.microsoft.com",
    "msdn.microsoft.com",
    "www.standardwebhooks.com",
}
"""Hosts that pages may point a reader to."""


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MKDOCS, "build", "--strict", "--config-file", config, "--site-dir", site],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        timeout=250,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built strictly: a dead link, a missing page or anchor fails it."""
    folder = tmp_path_factory.mktemp("site")
    done = build(PROJECT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Content(HTMLParser):
    """Ids, and addresses of other hosts that a page loads or points to."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: set[str] = set()
        self.linked: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        for name in ("src", "href"):
            if given.get(name, "").startswith(("http:", "https:", "//")):
                host = given[name].split("/")[2]
                (self.linked if tag == "a" else self.loaded).add(host)


def content(path: Path) -> Content:
    parsed = Content()
    parsed.feed(path.read_text())
    return parsed


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in (PROJECT / "docs").rglob("*.md"):
        assert (site / page.relative_to(PROJECT / "docs").with_suffix(".html")).is_file()


def test_every_public_name_is_in_the_reference_with_a_docstring(site: Path) -> None:
    ids = set().union(*(content(page).ids for page in (site / "reference").glob("*.html")))
    for name in coordinator.__all__:
        assert any(found.endswith(f".{name}") for found in ids), f"{name} is missing in the reference"
        thing = getattr(coordinator, name)
        if getattr(thing, "__module__", "").startswith("coordinator"):
            assert thing.__doc__, f"{name} says nothing of itself"


def test_each_error_has_a_section_that_says_what_to_do() -> None:
    for path in (PROJECT / "coordinator").rglob("*.py"):
        if not {"testing", "project"} & {*path.parts}:
            importlib.import_module(".".join(path.relative_to(PROJECT).with_suffix("").parts))

    def below(error: type[Exception]) -> set[str]:
        own = {error.__name__} if error.__module__.startswith("coordinator.") else set()
        return own.union(*map(below, error.__subclasses__()))

    errors = {name for name in below(KennelError) if not name.startswith("_")} - {"KennelError"}
    sections = re.findall(r"^### (.+)\n\n(.+)", (PROJECT / "docs" / "errors.md").read_text(), re.MULTILINE)
    assert {name for name, _ in sections} == errors


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("dlq", "glossary"),
        ("dlq", "alerts"),
        ("dead letter", "glossary"),
        ("lock", "leadership"),
        ("mutex", "leadership"),
        ("mutex", "glossary"),
        ("semaphore", "glossary"),
        ("cron", "leadership"),
        ("cron", "glossary"),
        ("install", "tutorial"),
        ("install", "glossary"),
        ("autoscaling", "glossary"),
        ("heartbeat", "glossary"),
        ("AccessDenied", "errors"),
        ("KennelPoison", "alerts"),
    ],
)
def test_the_search_finds_what_people_call_it(words: str, page: str, site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = [
        entry["location"]
        for entry in index["docs"]
        if all(word.lower() in f"{entry['title']} {entry['text']}".lower() for word in words.split())
    ]
    assert any(location.startswith(f"{page}.html") for location in found), found


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        parsed = content(page)
        assert parsed.loaded == set(), page.name
        # A comparison points to the documentation of what it compares with.
        assert parsed.linked <= HOSTS or page.stem == "compared", page.name


@pytest.mark.parametrize("fault", ["[x](missing.md)", "[x](other.md#nowhere)", "[x](/absolute.md)"])
def test_a_dead_link_would_fail_the_build(fault: str, tmp_path: Path) -> None:
    config = yaml.safe_load((PROJECT / "mkdocs.yml").read_text())
    config |= {"hooks": [], "plugins": [], "docs_dir": str(tmp_path / "docs")}
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "other.md").write_text("# Other\n")
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n[x](other.md#other) {fault}\n")
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0 and "WARNING" in done.stderr + done.stdout


def test_links_of_the_files_beside_the_code_lead_somewhere() -> None:
    for name in OUTSIDE:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (PROJECT / name).read_text()):
            assert "://" in target or (PROJECT / target).exists(), f"{name} points to {target}"


def test_no_two_decisions_have_the_same_number() -> None:
    numbers = [page.name[:4] for page in (PROJECT / "docs" / "decisions").glob("*.md")]
    assert len(numbers) == len(set(numbers)) > 20


def test_the_readme_fits_a_screen_and_a_half() -> None:
    assert len((PROJECT / "README.md").read_text().splitlines()) <= 90


# --- what pages show --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["test_orders_are_sold_once_the_gate_opens", "test_no_lost_answer_loses_a_message"]
)
async def test_the_tests_that_the_documentation_shows_pass(name: str, tmp_path: Path) -> None:
    await getattr(shown("testing.md", tmp_path), name)()


def shown(page: str, folder: Path) -> Any:
    """The Python of a page as a module."""
    text = (PROJECT / "docs" / page).read_text()
    file = folder / "shown.py"
    file.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)))
    spec = importlib.util.spec_from_file_location("shown", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_recipes_do_what_they_say(own_azurite: Azurite, tmp_path: Path) -> None:
    recipes = shown("how-to.md", tmp_path)
    environ = {"AZURE_STORAGE_CONNECTION_STRING": own_azurite.connection_string}
    recipes.register(Worker("recipes", environ=environ))
    async with Storage.from_env(environ) as storage:
        await recipes.open_in_steps(storage)
        sale = await storage.gate("sale").read()
        assert (sale.state, sale.share, sale.epoch) == ("open", 1.0, 2)
        await recipes.open_at_noon(storage)
        later = await storage.gate("happy-hour").read()
        assert later.state == "armed" and later.until == later.opened_at + 3600
        assert [await recipes.count_stock(storage) for _ in range(2)] == [1, 2]
        assert await asyncio.to_thread(recipes.number_invoices, storage, 150) == [*range(1, 151)]
        report = await asyncio.to_thread(lambda: open_book(storage, "invoices").verify())
        assert report.is_ok and report.used == 150
        queue = storage.queue("orders-in", type=recipes.Order)
        await recipes.put_as_others_do(storage)
        assert (await queue.peek())[0].items == (recipes.Order("ticket", 4200),)
        await queue.delete()
    text = (PROJECT / "docs" / "how-to.md").read_text()
    for typed in re.findall(r"^    python -m coordinator (.+)$", text, re.MULTILINE):
        command: click.Command = main
        for word in typed.split():
            if isinstance(command, click.Group):
                below = command.get_command(click.Context(command), word)
                assert below is not None, f"there is no command {typed}"
                command = below
