"""``python -m coordinator ids``: prove, search, export and repair sequences from the shell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain

import click

from coordinator.config import check_name
from coordinator.errors import KennelError
from coordinator.sequences.grants import FREE, GRANTED, RETURNED, Grant
from coordinator.sequences.ledger import LedgerReader, csv_lines, open_book
from coordinator.storage import Storage


@contextmanager
def _book(name: str, place: tuple[str, str] = ("", "")) -> Iterator[LedgerReader]:
    storage = Storage.from_env()
    container, blob = place
    try:
        yield open_book(storage, check_name("sequence", name), container=container, blob=blob)
    except KennelError as error:
        raise click.ClickException(str(error)) from error
    finally:
        storage.close()


def _place(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, str]:
    container, _, blob = text.partition("/")
    return container, blob


AT = click.option(
    "--at",
    "place",
    default="",
    callback=_place,
    metavar="CONTAINER/BLOB",
    help="Location of the counter, if not the default.",
)


@click.group()
def ids() -> None:
    """Order numbers: search, verify, export and repair the ledger of a sequence."""


@ids.command()
@click.argument("name")
@AT
def verify(name: str, place: tuple[str, str]) -> None:
    """Verify that the ledger of NAME covers 1…next−1 without gaps or overlaps. Exit code 1 if it does not."""
    with _book(name, place) as book:
        report = book.verify()
    for what, figure in (
        ("grants", report.grants),
        ("used", report.used),
        ("returned, free", report.returned),
        ("in use, or lost (at most)", report.open),
        ("unattributed", report.unattributed),
        ("gaps", report.missing),
        ("overlaps", report.doubled),
    ):
        click.echo(f"{what:<26}{figure:>16,}")
    click.echo(report.summary)
    sys.exit(0 if report.is_ok else 1)


@ids.command()
@click.argument("name")
@AT
@click.argument("number", type=int)
def who(name: str, place: tuple[str, str], number: int) -> None:
    """Print the worker that held NUMBER of NAME, when, and its range. Exit code 1 if unknown."""
    with _book(name, place) as book:
        grant = book.holder(number)
        unattributed = grant is None and book.is_unattributed(number)
        if grant is None and not unattributed:
            book.require()
    if grant is not None:
        click.echo(f"{number}: {_described(grant)}")
        return
    if unattributed:
        click.echo(f"{number}: unattributed; another program moved the counter past it")
    else:
        click.echo(f"{number}: not granted")
    sys.exit(1)


@ids.command("list")
@click.argument("name")
@AT
@click.option("--owner", default="", help="Only the grants of this owner.")
@click.option("--limit", default=50, show_default=True, help="Maximum number of grants, newest first.")
def list_grants(name: str, place: tuple[str, str], owner: str, limit: int) -> None:
    """Print the newest grants of NAME."""
    with _book(name, place) as book:
        page = book.page(owner=owner, limit=limit)
        if not page.grants:
            book.require()
    for grant in page.grants:
        click.echo(_described(grant))


@ids.command()
@click.argument("name")
@AT
@click.option("--owner", default="", help="Only the grants of this owner.")
def export(name: str, place: tuple[str, str], owner: str) -> None:
    """Print all grants of NAME as CSV."""
    with _book(name, place) as book:
        rows = book.rows(owner=owner)
        first = next(rows, None)
        if first is None:
            book.require()
        for line in csv_lines(chain([first] if first else [], rows)):
            click.echo(line, nl=False)


@ids.command()
@click.argument("name")
@AT
@click.option(
    "--next", "next_number", type=int, help="Set the counter to this number instead of the proposed one."
)
@click.option("--yes", is_flag=True, help="Apply the plan.")
def repair(name: str, place: tuple[str, str], next_number: int | None, yes: bool) -> None:
    """Repair the counter of NAME. Shows the plan; writes only with --yes. Exit code 1 while something is wrong."""
    with _book(name, place) as book:
        plan = book.plan_repair(next_number=next_number)
        if plan.counter is None:
            click.echo(f"{name}: nothing to repair: {plan.reason}")
            return
        click.echo(f"{name}: {plan.problem}")
        click.echo(f"plan: set the counter to {plan.next_number} ({plan.reason})")
        if not yes:
            click.echo("Nothing changed; add --yes to apply the plan")
            sys.exit(1)
        book.repair(plan)
    click.echo(f"Set the counter to {plan.next_number}")


def _described(grant: Grant) -> str:
    owner = grant.owner
    when = f"{datetime.fromtimestamp(grant.granted_at, UTC):%Y-%m-%d %H:%M:%S}"
    state = {
        GRANTED: "in use, or lost with its owner",
        RETURNED: f"used to {grant.issued_through}, the rest returned",
        FREE: "returned, free",
    }.get(grant.outcome, grant.outcome)
    started = (
        f", process started {datetime.fromtimestamp(owner.started_at, UTC):%Y-%m-%d %H:%M:%S}"
        if owner.started_at
        else ""
    )
    return (
        f"{grant.first}…{grant.last}  {owner.id} (host {owner.host or '?'}, pid {owner.pid or '?'}{started}, "
        f"{owner.software or 'version unknown'})  {when} UTC  {state}"
    )
