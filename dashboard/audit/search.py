"""Finding rows of the audit by the words in them, by the database's own text index: FTS5 in SQLite, GIN in PostgreSQL.

Every part of a query must be the beginning of a word in who, what, target, reason, outcome or request id; "orders-in" asks
for those two words next to each other. The index follows the table by itself, whoever writes to it.
"""

from __future__ import annotations

import re
from typing import Any

from django.db import connection

MOST_PARTS = 5
_WORDS = re.compile(r"[^\W_]+")

_SQLITE = """
    SELECT r.id FROM dashboard_auditsearch s CROSS JOIN dashboard_auditrow r ON r.id = s.rowid
    WHERE dashboard_auditsearch MATCH %s AND s.rowid < %s AND s.rowid >= %s AND NOT (r.outcome = 'intent'
        AND EXISTS (SELECT 1 FROM dashboard_auditrow o WHERE o.intent_id = r.id))
    ORDER BY s.rowid DESC LIMIT %s
"""
# A row with an outcome is looked up, not asked for by EXISTS: the planner would collect all outcomes there are before the first row.
_POSTGRESQL = """
    SELECT r.id FROM dashboard_auditrow r
    WHERE r.search @@ to_tsquery('simple', %s) AND r.id < %s AND r.id >= %s AND NOT (r.outcome = 'intent'
        AND (SELECT o.id FROM dashboard_auditrow o WHERE o.intent_id = r.id LIMIT 1) IS NOT NULL)
    ORDER BY r.id DESC LIMIT %s
"""
_MAKE_SQLITE = (
    """
    CREATE VIRTUAL TABLE dashboard_auditsearch USING fts5(
        actor, action, target, reason, outcome, request_id,
        content='dashboard_auditrow', content_rowid='id', prefix='1 2 3')
    """,
    """
    CREATE TRIGGER audit_search_in AFTER INSERT ON dashboard_auditrow BEGIN
        INSERT INTO dashboard_auditsearch (rowid, actor, action, target, reason, outcome, request_id)
        VALUES (new.id, new.actor, new.action, new.target, new.reason, new.outcome, new.request_id);
    END
    """,
    """
    CREATE TRIGGER audit_search_out AFTER DELETE ON dashboard_auditrow BEGIN
        INSERT INTO dashboard_auditsearch
            (dashboard_auditsearch, rowid, actor, action, target, reason, outcome, request_id)
        VALUES ('delete', old.id, old.actor, old.action, old.target, old.reason, old.outcome, old.request_id);
    END
    """,
    """
    CREATE TRIGGER audit_search_set
    AFTER UPDATE OF actor, action, target, reason, outcome, request_id ON dashboard_auditrow BEGIN
        INSERT INTO dashboard_auditsearch
            (dashboard_auditsearch, rowid, actor, action, target, reason, outcome, request_id)
        VALUES ('delete', old.id, old.actor, old.action, old.target, old.reason, old.outcome, old.request_id);
        INSERT INTO dashboard_auditsearch (rowid, actor, action, target, reason, outcome, request_id)
        VALUES (new.id, new.actor, new.action, new.target, new.reason, new.outcome, new.request_id);
    END
    """,
    "INSERT INTO dashboard_auditsearch (dashboard_auditsearch) VALUES ('rebuild')",
)
# Signs that PostgreSQL would take for parts of a word, an address or a figure become spaces, as for SQLite they are.
_MAKE_POSTGRESQL = (
    """
    ALTER TABLE dashboard_auditrow ADD COLUMN search tsvector GENERATED ALWAYS AS (to_tsvector('simple', translate(
        actor || ' ' || action || ' ' || target || ' ' || reason || ' ' || outcome || ' ' || request_id,
        '-./@_:<>&+~=?#', '              '))) STORED
    """,
    "CREATE INDEX audit_search ON dashboard_auditrow USING gin (search)",
)
_UNMAKE_SQLITE = (
    "DROP TRIGGER IF EXISTS audit_search_in",
    "DROP TRIGGER IF EXISTS audit_search_out",
    "DROP TRIGGER IF EXISTS audit_search_set",
    "DROP TABLE dashboard_auditsearch",
)
_UNMAKE_POSTGRESQL = ("ALTER TABLE dashboard_auditrow DROP COLUMN search",)


def find(query: str, *, before: int | None, limit: int, first: int = 0) -> list[int] | None:
    """The ids of the newest rows from `first` on that match, newest first, no more than `limit`; None if nothing was asked for."""
    parts = [found for part in query.split()[:MOST_PARTS] if (found := _WORDS.findall(part))]
    if not parts:
        return None if not query.strip() else []
    if connection.vendor == "sqlite":
        sql, asked = _SQLITE, " ".join(f'"{" ".join(part)}"*' for part in parts)
    else:
        sql, asked = _POSTGRESQL, " & ".join(f"({' <-> '.join(part)}:*)" for part in parts)
    with connection.cursor() as cursor:
        cursor.execute(sql, [asked, before if before is not None else 2**63 - 1, first, limit])
        return [row[0] for row in cursor.fetchall()]


def make(apps: Any, editor: Any) -> None:
    """Build the index over what is there, and have the database keep it current. For the migration."""
    for statement in _MAKE_SQLITE if editor.connection.vendor == "sqlite" else _MAKE_POSTGRESQL:
        editor.execute(statement, params=None)


def unmake(apps: Any, editor: Any) -> None:
    """Undo `make`."""
    for statement in _UNMAKE_SQLITE if editor.connection.vendor == "sqlite" else _UNMAKE_POSTGRESQL:
        editor.execute(statement, params=None)
