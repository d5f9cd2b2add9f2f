"""The types of everything that comes from elsewhere: frames, blobs, rows, messages, forms. Each has its bounds.

Values that arrive are checked once, where they are decoded; the code behind may then trust them. A number that no clock, counter or
page can hold is refused there with the path of the field, whoever sent it.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

MAX_COUNT = 10**15
"""The largest count and epoch. Sums of thousands of them still fit a database's integer and a browser's number."""
MAX_HELD = 1_000_000
"""The most messages, tasks or calls that one process has at a time: each takes memory and a request."""
MAX_NUMBER = 2**63 - 1
FIRST_MOMENT, LAST_MOMENT = 0.0, 253_370_764_800.0
"""Seconds since 1970 that a calendar can show in every time zone: 1970 to the end of 9998."""
MAX_SECONDS = 1e10
MAX_PER_SECOND = 1e12
MAX_SHORT, MAX_REASON, MAX_LONG = 200, 500, 2_000
MAX_ITEMS = 1_000

# Marks that turn the direction of text would let one name look like another.
_TURNING = r"\u202a-\u202e\u2066-\u2069"
_ONE_LINE = rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_TURNING}]"
_LINES = rf"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff{_TURNING}]"

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
"""How many, and epochs: 0 to 10**15."""
Held = Annotated[int, Meta(ge=0, le=MAX_HELD)]
"""What one process has at a time: 0 to a million."""
Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
"""A number of a sequence: 0 to 2**63 - 1."""
Moment = Annotated[float, Meta(ge=FIRST_MOMENT, le=LAST_MOMENT)]
"""A moment in seconds since 1970 (UTC), finite, within the years 1970 to 9998."""
Duration = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
"""Seconds, 0 to 317 years."""
Offset = Annotated[float, Meta(ge=-MAX_SECONDS, le=MAX_SECONDS)]
"""Seconds between two moments, either way."""
Rate = Annotated[float, Meta(ge=0, le=MAX_PER_SECOND)]
"""So many a second."""
Share = Annotated[float, Meta(gt=0, le=1)]
"""A part of a whole, above 0."""
ProcessId = Annotated[int, Meta(ge=0, le=2**32 - 1)]

Name = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?\Z")
]
"""The name of a gate, queue, sequence or election, as read; `check_name` is stricter about those that are made here."""
Instance = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[A-Za-z0-9][A-Za-z0-9_-]*\Z")]
"""Identifies one start of a process; fits an address."""
Text = Annotated[str, Meta(max_length=MAX_SHORT, pattern=rf"\A{_ONE_LINE}*\Z")]
"""One line of at most 200 characters, none of them a control character or a mark that turns the text's direction. May be empty."""
Label = Annotated[str, Meta(min_length=1, max_length=MAX_SHORT, pattern=rf"\A{_ONE_LINE}+\Z")]
"""As `Text`, and not empty."""
Reason = Annotated[str, Meta(max_length=MAX_REASON, pattern=rf"\A{_ONE_LINE}*\Z")]
"""One line of at most 500 characters. May be empty."""
LongText = Annotated[str, Meta(max_length=MAX_LONG, pattern=rf"\A{_LINES}*\Z")]
"""At most 2,000 characters; lines and tabs are allowed, other control characters are not."""
KeyText = Annotated[str, Meta(max_length=1024)]
"""What a key, a row or another service calls a thing: at most 1,024 characters of any kind, since others made it. May be empty."""
Nonce = Annotated[str, Meta(max_length=MAX_SHORT)]
"""What a writer made up to know its own change by: at most 200 characters of any kind, compared and never shown. May be empty."""
Remark = Annotated[str, Meta(max_length=32_768)]
"""What fits in a string column: 32,768 characters of any kind, such as an error's text or JSON. May be empty."""
Stored = Annotated[str, Meta(max_length=16 * 1024)]
"""A small thing in its stored form: at most 16,384 characters, decoded and checked by its own rules. May be empty."""
Figure = Annotated[float, Meta(ge=-1e300, le=1e300)]
"""A number that was computed: any but infinity and NaN."""
Word = Annotated[str, Meta(max_length=32, pattern=r"\A[a-z0-9_ -]*\Z")]
"""One of a few words that newer versions may add to. May be empty."""

_MATCHING = re.compile(r"`str` matching regex '(.*?)'(?=$| - at )")
_FORMS = {
    r"\A[^\x00-\x1f": "one line without control characters or marks that turn the direction of text",
    r"\A[^\x00-\x08": "text without control characters or marks that turn its direction",
    r"\A[A-Za-z0-9](?:": "a name of letters, digits, dots, dashes and underscores",
    r"\A[A-Za-z0-9][": "an id of letters, digits, dashes and underscores",
    r"\A[a-z0-9_ -]": "a word of lower-case letters and digits",
    r"\A[A-Za-z0-9._*": "names with * and ?, separated by single spaces",
}


def plainly(error: Exception) -> str:
    """What was wrong with something that was decoded, with the types of this module in words instead of expressions."""

    def words(found: re.Match[str]) -> str:
        form = found[1].replace("\\\\", "\\")
        return next((text for start, text in _FORMS.items() if form.startswith(start)), found[0])

    return _MATCHING.sub(words, str(error))


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def one_line(text: str, most: int = MAX_SHORT) -> str:
    """`text` as a `Text`: cut to `most` characters, each control character replaced by a space."""
    return _UNPRINTABLE.sub(" ", text[:most])


_PRINTABLE = re.compile(rf"{_LINES}*")


def is_printable(text: str) -> bool:
    """Whether it holds no control characters but lines and tabs, and no marks that turn its direction, as a `LongText`."""
    return _PRINTABLE.fullmatch(text) is not None


def is_moment(value: object) -> bool:
    """Whether this is a number that can be a moment (seconds since 1970): finite and within the years 1970 to 9998."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and FIRST_MOMENT <= value <= LAST_MOMENT
    )


def is_storable(text: str) -> bool:
    """Whether a database and a page can hold it: no NUL and no half of a surrogate pair."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)
