"""Numbers that people read aloud and type in: grouped, with a check digit that catches a slip. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stdnum import damm, luhn
from stdnum.exceptions import ValidationError

from coordinator.errors import ConfigurationError, KennelError


class MistypedNumber(KennelError, ValueError):
    """The text is no number in this format, or its check digit does not fit."""


@dataclass(frozen=True, kw_only=True)
class NumberFormat:
    """How numbers look to people: ``NumberFormat(check="damm").format(1204318)`` is ``12 043 189``.

    group: digits a group, counted from the right (0: no groups; default 3).  separator: between groups.
    check: a last digit that catches every single wrong digit and, with "damm", every swap of neighbours ("luhn", as on
        payment cards, misses 09↔90); None for none.  width: least number of digits, filled with zeros.
    """

    group: int = 3
    separator: str = " "
    check: Literal["damm", "luhn"] | None = "damm"
    width: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.group <= 20 or not 0 <= self.width <= 30:
            raise ConfigurationError(
                f"group must be 0 to 20 and width 0 to 30, got {self.group} and {self.width}"
            )
        if any(letter.isdigit() for letter in self.separator):
            raise ConfigurationError(f"the separator must hold no digit, got {self.separator!r}")
        if self.check not in ("damm", "luhn", None):
            raise ConfigurationError(f"check must be 'damm', 'luhn' or None, got {self.check!r}")

    def format(self, number: int) -> str:
        """The number as text; raises `ValueError` for a negative one."""
        if number < 0:
            raise ValueError(f"only numbers from 0 can be formatted, got {number}")
        digits = str(number).zfill(self.width)
        if self.check:
            digits += (damm if self.check == "damm" else luhn).calc_check_digit(digits)
        if not self.group:
            return digits
        head = len(digits) % self.group
        groups = [digits[:head]] if head else []
        groups += [digits[place : place + self.group] for place in range(head, len(digits), self.group)]
        return self.separator.join(groups)

    def parse(self, text: str) -> int:
        """The number behind a text as people type it (groups may be missing); `MistypedNumber` if it cannot be right."""
        digits = "".join(
            letter
            for letter in text
            if letter not in self.separator and not letter.isspace() and letter != "-"
        )
        if not (digits.isascii() and digits.isdigit()):
            raise MistypedNumber(f"{text!r} is not a number")
        if not self.check:
            return int(digits)
        try:
            (damm if self.check == "damm" else luhn).validate(digits)
        except ValidationError as error:
            raise MistypedNumber(f"{text!r} has a slip: its check digit does not fit") from error
        if len(digits) < 2:
            raise MistypedNumber(f"{text!r} is only a check digit")
        return int(digits[:-1])
