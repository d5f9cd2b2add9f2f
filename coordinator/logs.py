"""Log lines: a sentence plus fields, as text for people or as one JSON object a line for machines."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec

# What a terminal or a log reader takes for the end of a line, or for a command.
_BREAKS = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160)) if code != 9}
_BREAKS |= {10: "\\n", 13: "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """One line for each record, whatever its text holds: a newline in a name cannot forge a line.

    The lines of a traceback follow indented, so that none of them looks like a record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).translate(_BREAKS)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"    {line.translate(_BREAKS)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `at`, `level`, `logger`, `message`, then the fields given as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure(*, level: str = "INFO", as_json: bool = False) -> None:
    """Send the log to standard error. The storage SDK is kept to warnings: its lines are a request each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if as_json else LineFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("azure", "websockets", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
