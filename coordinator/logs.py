"""Log lines: a sentence plus fields, as text for people or as one JSON object a line for machines."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


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
        JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("azure", "websockets", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
