"""Numbers for people come back as typed, and slips are caught."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import ConfigurationError
from coordinator.sequences.readable import MistypedNumber, NumberFormat

FORMATS = [
    NumberFormat(),
    NumberFormat(check="luhn", group=4, separator="-"),
    NumberFormat(check=None, group=0),
    NumberFormat(width=8, separator="."),
]


@given(st.integers(0, 2**63 - 1), st.sampled_from(FORMATS))
def test_every_number_comes_back(number: int, shape: NumberFormat) -> None:
    text = shape.format(number)
    assert shape.parse(text) == number
    assert shape.parse(text.replace(shape.separator, "")) == number


@given(st.integers(0, 10**9), st.data())
def test_every_single_wrong_digit_is_caught(number: int, data: st.DataObject) -> None:
    shape = NumberFormat(group=0, check=data.draw(st.sampled_from(["damm", "luhn"])))
    text = shape.format(number)
    place = data.draw(st.integers(0, len(text) - 1))
    wrong = data.draw(st.sampled_from([digit for digit in "0123456789" if digit != text[place]]))
    with pytest.raises(MistypedNumber):
        shape.parse(text[:place] + wrong + text[place + 1 :])


@given(st.integers(0, 10**9), st.data())
def test_damm_catches_swapped_neighbours(number: int, data: st.DataObject) -> None:
    shape = NumberFormat(group=0)
    text = shape.format(number)
    place = data.draw(st.integers(0, len(text) - 2)) if len(text) > 1 else 0
    swapped = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    if swapped != text:
        with pytest.raises(MistypedNumber):
            shape.parse(swapped)


def test_groups_are_counted_from_the_right() -> None:
    assert NumberFormat(check=None).format(1204318) == "1 204 318"
    assert NumberFormat(check=None, group=4, separator="-", width=10).format(1204318) == "00-0120-4318"


@pytest.mark.parametrize("text", ["", "abc", "12a", "٤١", "-"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(MistypedNumber):
        NumberFormat().parse(text)


def test_impossible_formats_are_refused() -> None:
    for wrong in ({"group": -1}, {"separator": "7"}, {"check": "crc"}, {"width": 99}):
        with pytest.raises(ConfigurationError):
            NumberFormat(**wrong)  # type: ignore[arg-type]
