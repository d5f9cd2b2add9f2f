"""Hooks of the documentation's site: the order of pages, the reference made from docstrings, links that leave docs/.

Pages join by lying in docs/. The reference covers every name in ``coordinator.__all__``, a page for each room.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": (
        "index.md",
        "when.md",
        "compared.md",
        "tutorial.md",
        "project.md",
        "demo.md",
        "tour.md",
        "how-to.md",
        "glossary.md",
    ),
    "Primitives": ("gates.md", "sequences.md", "leadership.md", "queues.md", "tables.md", "sagas.md"),
    "Fleet": (
        "worker.md",
        "pipelines.md",
        "scaling.md",
        "cost.md",
        "telemetry.md",
        "testing.md",
    ),
    "Operate": (
        "deployment.md",
        "dashboard.md",
        "api.md",
        "client.md",
        "webhooks.md",
        "access.md",
        "sign-in.md",
        "audit.md",
        "security.md",
        "doctor.md",
        "alerts.md",
        "errors.md",
        "reliability.md",
        "performance.md",
        "capacity.md",
    ),
    "Inside": ("architecture.md", "wire-format.md", "sources.md"),
}
OTHERS = "Guides"
MOVED = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "reporting.md"}
"""Files of the repository's top folder that are pages of the site, too."""
TITLES = {
    "config": "Configuration",
    "doctor": "Doctor",
    "errors": "Errors",
    "storage": "Storage",
    "testing": "For your tests",
    "worker": "Worker",
}
BEYOND = (
    "coordinator.config.StorageConfig",
    "coordinator.leadership.term.LeaseConfig",
    "coordinator.leadership.semaphore.BlobDistributedSemaphore",
    "coordinator.tables.bulk.BulkWrite",
    "coordinator.tables.commit.commit",
)
"""What the reference covers beside `coordinator.__all__`: what a method of `Storage` returns or takes."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Order the pages that exist; those of no section follow by name."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    docs = Path(config.docs_dir)
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    known = {page for section in SECTIONS.values() for page in section}
    nav: list[dict[str, Any]] = [
        {title: found} for title, section in SECTIONS.items() if (found := [p for p in section if p in pages])
    ]
    if others := sorted(page for page in pages - known if "/" not in page):
        nav.append({OTHERS: others})
    for folder in sorted({page.split("/")[0] for page in pages if "/" in page} - {"decisions"}):
        nav.append({folder.capitalize(): sorted(page for page in pages if page.startswith(f"{folder}/"))})
    nav.append({"Reference": [f"reference/{name}.md" for name in reference()]})
    if decisions := sorted(page for page in pages if page.startswith("decisions/")):
        nav.append({"Decisions": decisions})
    nav.append({"Project": list(MOVED.values())})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made rather than written."""
    for name, text in reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    files.append(File.generated(config, "openapi.json", content=json.dumps(openapi(), indent=1)))
    for source, target in MOVED.items():
        text = re.sub(r"\]\((?:\./)?docs/", "](", (ROOT / source).read_text())
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside docs/ into links to their pages, or into plain words if they are code.

    A link to something that does not exist stays as it is, and fails the strict build.
    """
    folder = ROOT / "docs" / os.path.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        address, _, anchor = target.partition("#")
        if picture or not address or "://" in address:
            return link[0]
        path = Path(os.path.normpath(folder / address))
        if path.is_relative_to(ROOT / "docs") or not path.is_relative_to(ROOT) or not path.exists():
            return link[0]
        if (moved := MOVED.get(str(path.relative_to(ROOT)))) is not None:
            here = os.path.relpath(moved, os.path.dirname(page.file.src_uri) or ".")
            return f"[{words}]({here}{'#' + anchor if anchor else ''})"
        return words

    made = {"<!-- benchmarks -->": benchmarks, "<!-- operations -->": operations}
    markdown = LINK.sub(replaced, markdown)
    for mark, text in made.items():
        if mark in markdown:
            markdown = markdown.replace(mark, text())
    return markdown


def openapi() -> dict[str, Any]:
    """The schema of the API, as the dashboard serves it."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    import django

    django.setup()
    from dashboard.api.v1.api import api

    schema: dict[str, Any] = api.get_openapi_schema(path_prefix="/api/v1/")
    return schema


def operations() -> str:
    """A table of the API's operations."""
    rows = ["| operation | does | role |", "|---|---|---|"]
    for path, methods in sorted(openapi()["paths"].items()):
        for method, told in methods.items():
            does = " ".join(told["description"].split("\n\n")[0].split())
            rows.append(f"| `{method.upper()} {path}` | {does} | {told['x-kennel-role']} |")
    return "\n".join(rows)


def benchmarks() -> str:
    """What each benchmark measures, in its own words."""
    rows = ["| program | measures |", "|---|---|"]
    for path in sorted((ROOT / "benchmarks").glob("[a-z]*.py")):
        told = ast.get_docstring(ast.parse(path.read_text())) or ""
        if "--json" in told:
            rows.append(f"| `benchmarks/{path.name}` | {' '.join(told.split(chr(10) * 2)[0].split())} |")
    return "\n".join(rows)


def reference() -> dict[str, str]:
    """The text of each page of the reference by its name."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for node in ast.parse((ROOT / "coordinator" / "public.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "coordinator.errors":
            rooms[node.module.split(".")[1]] += [f"{node.module}.{alias.name}" for alias in node.names]
    for name in BEYOND:
        rooms[name.split(".")[1]].append(name)
    rooms["client"] = ["coordinator.client"]
    rooms["doctor"] = ["coordinator.doctor.examine", "coordinator.doctor.findings.Finding"]
    pages = {
        room: f"# {TITLES.get(room, room.capitalize())}\n\n" + "\n".join(f"::: {name}\n" for name in names)
        for room, names in rooms.items()
    }
    pages["errors"] = "# Errors\n\n::: coordinator.errors\n    options:\n      show_root_heading: false\n"
    pages["testing"] = (
        "# For your tests\n\nIn-memory stores that behave as the service does, proven by one suite that runs on both.\n\n"
        + "".join(
            f"::: coordinator.testing.{path.stem}\n"
            for path in sorted((ROOT / "coordinator" / "testing").glob("[a-z]*.py"))
        )
    )
    pages["command-line"] = command_line()
    first = [
        name for name in ("storage", "worker", "gates", "sequences", "leadership", "queues") if name in pages
    ]
    return {name: pages[name] for name in [*first, *sorted(pages.keys() - set(first))]}


def command_line() -> str:
    """The help of every command, as it is shown."""
    import click

    from coordinator.__main__ import main

    text = io.StringIO("# Command line\n\nInstalled as `kennel`; `python -m coordinator` is the same.\n")
    text.seek(0, io.SEEK_END)

    def describe(command: click.Command, path: str, depth: int) -> None:
        context = click.Context(command, info_name=path, max_content_width=100)
        text.write(f"\n{'#' * depth} {path}\n\n```text\n{command.get_help(context)}\n```\n")
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                if below := command.get_command(context, name):
                    describe(below, f"{path} {name}", min(depth + 1, 4))

    describe(main, "kennel", 2)
    return text.getvalue()
