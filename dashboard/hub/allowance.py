"""What the workers of one token may claim to be and may ask of the hub. Checked in the consumer, shown on Access."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
from msgspec import Meta

Patterns = Annotated[
    str, Meta(min_length=1, max_length=200, pattern=r"\A[A-Za-z0-9._*?@:-]+( [A-Za-z0-9._*?@:-]+)*\Z")
]


class Allowance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Patterns are names with ``*`` and ``?``, several with a space between.

    `workers`: the names of its workers. `gates`, `queues`: what they may tell of, announce and receipt. `connections`:
    sockets open at once in one dashboard process. `instances`: starts of processes that are remembered at once, those
    that have gone within ten minutes among them. `per_second`: frames of one socket, in the long run.
    """

    workers: Patterns = "*"
    gates: Patterns = "*"
    queues: Patterns = "*"
    connections: Annotated[int, Meta(ge=1, le=20_000)] = 1_000
    instances: Annotated[int, Meta(ge=1, le=50_000)] = 2_000
    per_second: Annotated[int, Meta(ge=2, le=50)] = 50

    @property
    def is_usual(self) -> bool:
        return self == USUAL


USUAL = Allowance()
"""What a token made before allowances may claim, and one that a program keeps without saying more."""
NEW = Allowance(connections=100, instances=400)
"""What a token gets that is made by form, command or API, if its maker does not say otherwise."""


def matches(patterns: str, name: str) -> bool:
    """Whether one of the patterns covers the name."""
    return patterns == "*" or any(fnmatchcase(name, each) for each in patterns.split(" "))


def encode(allowance: Allowance) -> str:
    """As kept with the token; "" for the usual one."""
    return "" if allowance.is_usual else msgspec.json.encode(allowance).decode()


def decode(text: str) -> Allowance:
    """As kept. What cannot be read allows nothing by name, rather than everything."""
    if not text:
        return USUAL
    try:
        return msgspec.json.decode(text, type=Allowance)
    except msgspec.DecodeError:
        return Allowance(workers="-", gates="-", queues="-", connections=1, instances=1, per_second=2)
