"""Promises of what a worker's token may claim."""

from __future__ import annotations

import msgspec
import pytest

from dashboard.hub.allowance import USUAL, Allowance, decode, encode, matches


@pytest.mark.parametrize(
    ("patterns", "name", "covered"),
    [
        ("*", "anything at all", True),
        ("billing-*", "billing-7", True),
        ("billing-*", "shipping-7", False),
        ("billing-* shipping-?", "shipping-7", True),
        ("-", "billing-7", False),
    ],
)
def test_a_pattern_covers_names(patterns: str, name: str, covered: bool) -> None:
    assert matches(patterns, name) is covered


def test_what_is_kept_comes_back_and_the_usual_is_kept_as_nothing() -> None:
    own = Allowance(workers="billing-*", connections=3)
    assert decode(encode(own)) == own
    assert (encode(USUAL), decode("")) == ("", USUAL)


@pytest.mark.parametrize("kept", ["{", '{"workers": "a\\nb"}', '{"connections": 0}', '{"connexions": 3}'])
def test_an_allowance_that_cannot_be_read_allows_nothing_by_name(kept: str) -> None:
    assert not matches(decode(kept).workers, "billing-7")
    assert decode(kept).connections == 1


@pytest.mark.parametrize(
    "fault", [{"per_second": 0}, {"connections": 10**9}, {"gates": ""}, {"queues": "a  b"}]
)
def test_claims_out_of_bounds_are_refused(fault: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fault, Allowance)
