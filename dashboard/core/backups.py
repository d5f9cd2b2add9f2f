"""Backups of what the dashboard keeps and the gates: one compressed file, read back into an empty database.

Holds users with their groups, second factors and bindings to a provider, tokens (as digests), teams' rules, prices, the
whole audit, the gates of the account and the highest epochs seen of them. Does not hold sessions, graphs and what is made again from storage; nor counters,
messages and leases: those are the account's own, and setting a counter back is what this must never do.

Guarantees that a file is read back whole or not at all: it ends with the digest of all its lines, the chain of the audit
is verified before anything is kept, and all of it is one transaction. The restore is a row of the audit itself.
Does not overwrite: a database with users or an audit is refused, and of gates those that are missing are made again,
closed, above every epoch that workers have seen. Tokens that were revoked after the backup are valid again.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from django.apps import apps
from django.core import serializers
from django.core.management.color import no_style
from django.db import connection, transaction

from coordinator.gates.azure import list_gates, read_gates
from coordinator.gates.state import phase
from coordinator.storage import Storage
from dashboard.core import audit, audit_chain, audit_heads
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor
from dashboard.models import AuditOutcome, AuditRow

FORMAT = 1
# In the order in which rows refer to each other.
MODELS = (
    "auth.Group", "auth.User", "mfa.Authenticator", "socialaccount.SocialAccount", "dashboard.WorkerToken",
    "dashboard.TeamRule", "dashboard.GatePeak", "dashboard.Pricing", "dashboard.WebhookMark", "dashboard.SavedView",
    "dashboard.AuditRow", "dashboard.AuditHead",
)  # fmt: skip
AT_ONCE = 500
NEVER = 4_102_444_800.0  # 2100


class GateCopy(msgspec.Struct, frozen=True):
    """A gate as it was."""

    gate: str
    state: str
    epoch: int
    by: str
    reason: str


class Restored(msgspec.Struct, frozen=True):
    """What came of a restore: rows by model, the audit's last row, and the gates of the file."""

    rows: dict[str, int]
    through: int
    made_at: float
    gates: tuple[GateCopy, ...]


async def gates_of(storage: Storage) -> list[GateCopy]:
    """The gates of the account, those that can be read."""
    now = time.time()
    found = await list_gates(storage)
    return [GateCopy(each.name, phase(each, now), each.epoch, each.by, each.reason) for each in found]


def write(path: Path, gates: list[GateCopy]) -> dict[str, int]:
    """Write a backup to a new file; how many rows of each model it holds. Raises `FileExistsError`."""
    counts: dict[str, int] = {}
    digest = hashlib.sha256()
    with path.open("xb") as raw, gzip.open(raw, "wt", encoding="utf-8") as file, _snapshot():

        def line(value: str) -> None:
            digest.update(value.encode() + b"\n")
            file.write(value + "\n")

        line(json.dumps({"kennel_backup": FORMAT, "made_at": time.time()}))
        for gate in gates:
            line(json.dumps({"gate": msgspec.to_builtins(gate)}))
        for name in MODELS:
            rows = apps.get_model(name)._default_manager.order_by("pk")
            counts[name] = 0
            for row in rows.iterator(AT_ONCE):
                line(json.dumps({"row": json.loads(serializers.serialize("json", [row]))[0]}))
                counts[name] += 1
        file.write(json.dumps({"sha256": digest.hexdigest()}) + "\n")
    return counts


def read(path: Path, actor: Actor) -> Restored:
    """Read a backup into an empty database. Raises `ActionFailed`, with nothing changed."""
    _refuse_unless_empty()
    counts = dict.fromkeys(MODELS, 0)
    gates: list[GateCopy] = []
    with transaction.atomic():
        # What `migrate` made: the file has its own.
        apps.get_model("auth.Group")._default_manager.all().delete()
        apps.get_model("dashboard.AuditHead")._default_manager.all().delete()
        made_at = 0.0
        for entry in _lines(path):
            if "row" in entry:
                model = _model_of(entry["row"])
                for each in serializers.deserialize("json", json.dumps([entry["row"]])):
                    each.save(force_insert=True)
                counts[model] += 1
            elif "gate" in entry:
                gates.append(msgspec.convert(entry["gate"], GateCopy))
            else:
                made_at = float(entry.get("made_at", 0.0))
        if AuditRow.objects.exists() and (faults := list(audit_chain.verify())):
            raise ActionFailed(f"The audit in {path} is not as it was written: {faults[0].what}.")
        _advance_sequences()
        through, _ = audit.head()
        row = audit.intent(actor, audit_heads.RESTORE, path.name[:200])
        after = {"through": through, "made_at": made_at, "rows": sum(counts.values())}
        audit.outcome(row, AuditOutcome.DONE, after=json.dumps(after))
    return Restored(counts, through, made_at, tuple(gates))


async def make_missing_gates(storage: Storage, gates: tuple[GateCopy, ...], *, reason: str) -> list[str]:
    """Make the gates again that are missing in the account, closed; returns their names."""
    # One that is there and cannot be read is not missing.
    known = {each.name for each in await read_gates(storage)}
    missing = [gate for gate in gates if gate.gate not in known]
    for copy in missing:
        gate = storage.gate(copy.gate)
        # A gate that is missing is closed already, and closing it would store nothing: a time that nobody lives to see
        # makes it, and lets nobody through.
        await gate.open(by="restore", reason=reason, at=NEVER, above=copy.epoch)
        await gate.close(by="restore", reason=reason)
    return [gate.gate for gate in missing]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file, the last of which must be the digest of those before."""
    digest, end = hashlib.sha256(), ""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                entry = json.loads(line)
                if end or not isinstance(entry, dict):
                    raise ValueError(f"line {number} is not one of a backup")
                if number == 1 and entry.get("kennel_backup") != FORMAT:
                    raise ValueError("it is no backup of this version of Kennel")
                if "sha256" in entry:
                    end = str(entry["sha256"])
                    continue
                digest.update(line.encode())
                yield entry
    except (OSError, EOFError, ValueError) as error:
        raise ActionFailed(f"{path} cannot be read: {error}.") from error
    if end != digest.hexdigest():
        raise ActionFailed(f"{path} is not whole: it does not end with the digest of its lines.")


def _model_of(row: dict[str, Any]) -> str:
    known = {name.lower(): name for name in MODELS}
    name = known.get(str(row.get("model", "")))
    if name is None:
        raise ActionFailed(
            f"The backup holds a row of {str(row.get('model'))[:80]!r}, which belongs in none."
        )
    return name


def _refuse_unless_empty() -> None:
    for name in ("auth.User", "dashboard.AuditRow", "dashboard.WorkerToken"):
        if apps.get_model(name)._default_manager.exists():
            raise ActionFailed(
                f"The database holds rows of {name} already. Restore into an empty one: a new DATABASE_URL, then "
                "manage.py migrate."
            )


def _advance_sequences() -> None:
    """Rows that come next must not take numbers that the restored ones have."""
    models = [apps.get_model(name) for name in MODELS]
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), models):
            cursor.execute(statement)


@contextmanager
def _snapshot() -> Iterator[None]:
    """All rows as of one moment, without keeping writers waiting."""
    if connection.in_atomic_block:
        yield
        return
    begin = (
        "BEGIN DEFERRED"
        if connection.vendor == "sqlite"
        else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    )
    with connection.cursor() as cursor:
        cursor.execute(begin)
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")
