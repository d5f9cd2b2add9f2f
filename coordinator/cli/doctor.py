"""``python -m coordinator doctor`` on the command line."""

from __future__ import annotations

import asyncio
import os
import sys

import click
import msgspec

from coordinator.doctor import Finding, examine

MARKS = {"ok": "ok", "warning": "WARNING", "fault": "FAULT", "skipped": "-"}
COLOURS = {"ok": "green", "warning": "yellow", "fault": "red", "skipped": None}


@click.command()
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Also check this queue; repeat for more."
)
@click.option("--read-only", is_flag=True, help="Write nothing to the account; rights stay unknown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per finding.")
def doctor(queues: tuple[str, ...], read_only: bool, as_json: bool) -> None:
    """Check settings, storage, rights, clock, versions and hub. Exit code 1 if there is a fault."""
    findings = asyncio.run(examine(os.environ, queues=queues, write=not read_only))
    for finding in findings:
        click.echo(msgspec.json.encode(finding).decode() if as_json else describe(finding))
    faults = sum(finding.verdict == "fault" for finding in findings)
    warnings = sum(finding.verdict == "warning" for finding in findings)
    if not as_json:
        click.echo(f"{_count(faults, 'fault')}, {_count(warnings, 'warning')}")
    sys.exit(1 if faults else 0)


def describe(finding: Finding) -> str:
    """At most two lines: what was found, and what to do."""
    mark = click.style(f"{MARKS[finding.verdict]:<9}", fg=COLOURS[finding.verdict])
    line = f"{mark}{finding.check:<18} {finding.found}"
    if finding.cure and finding.verdict != "ok":
        line += f"\n{'':<9}{'':<18} → {finding.cure}"
    return line


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
