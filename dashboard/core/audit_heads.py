"""The end of the audit, kept where nobody of the database can write: in an append blob of the storage account.

Guarantees that within about a minute of a row its id and digest are in the journal `{prefix}audit`, written by the one
process that samples for all, and with `KENNEL_AUDIT_KEY` under a code (HMAC-SHA256) that cannot be made without that key;
`audit verify` compares them all. Does not help against somebody who can rewrite database and account and knows the key:
an immutability policy on the container does.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from django.conf import settings

from coordinator.journal import Journal
from coordinator.storage import Storage
from dashboard.core import audit_chain
from dashboard.core.audit_chain import ChainFault
from dashboard.models import AuditOutcome, AuditRow

log = logging.getLogger(__name__)

KIND = "audit"
RESTORE = "restore"


class ChainHead(NamedTuple):
    """One line of the journal. `mac` is "" if it was written without a key."""

    id: int
    digest: str
    at: float
    mac: str


def line_of(row: int, digest: str, at: float) -> str:
    """The line to keep."""
    fields = {"id": row, "digest": digest, "at": at}
    return json.dumps(fields | ({"mac": _code(row, digest, at)} if settings.AUDIT_KEY else {}))


def head_of(line: str) -> ChainHead | None:
    """What a line holds; None if it holds no head."""
    try:
        fields = json.loads(line)
        return ChainHead(
            int(fields["id"]), str(fields["digest"]), float(fields["at"]), str(fields.get("mac", ""))
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


async def keep(storage: Storage, row: int, digest: str, *, now: float | None = None) -> None:
    """Write the head to the journal."""
    at = time.time() if now is None else now
    month = datetime.fromtimestamp(at, UTC).strftime("%Y-%m")
    await Journal(storage, KIND).append(f"heads-{month}", line_of(row, digest, at))


async def kept(storage: Storage) -> list[str]:
    """The lines of the journal."""
    return await Journal(storage, KIND).lines()


def verify(lines: Iterable[str]) -> Iterator[ChainFault]:
    """Report every kept head that the audit does not hold any more, and every line that is not ours.

    Rows that retention removed are not asked for, nor those written after a backup that was restored since: the chain holds
    a row of that, and what was lost is in the outcome of `manage.py restore`.
    """
    last_pruned, _ = audit_chain.pruned()
    restores = _restores()
    for number, line in enumerate(lines, 1):
        head = head_of(line)
        if head is None:
            yield ChainFault(0, f"line {number} of the journal is not a head of the audit")
        elif settings.AUDIT_KEY and not hmac.compare_digest(head.mac, _code(head.id, head.digest, head.at)):
            yield ChainFault(
                head.id, f"the head #{head.id} in the journal was not written with KENNEL_AUDIT_KEY"
            )
        elif head.id <= last_pruned or any(head.at < at and head.id > through for at, through in restores):
            continue
        elif not AuditRow.objects.filter(pk=head.id, digest=head.digest).exists():
            yield ChainFault(
                head.id,
                f"the chain does not hold #{head.id} as it was at {_moment(head.at)}, when it was its end",
            )


def _restores() -> list[tuple[float, int]]:
    """When a backup was restored, and the last row that it held."""
    found = []
    for row in AuditRow.objects.filter(action=RESTORE, outcome=AuditOutcome.DONE):
        try:
            found.append((row.at, int(json.loads(row.after)["through"])))
        except (ValueError, KeyError, TypeError):
            continue  # somebody changed it: `audit_chain.verify` names the row
    return found


def _code(row: int, digest: str, at: float) -> str:
    return hmac.new(
        settings.AUDIT_KEY.encode(), f"{row}:{digest}:{at!r}".encode(), hashlib.sha256
    ).hexdigest()


def _moment(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return "some moment"
