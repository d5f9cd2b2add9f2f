"""A gate as it is stored: read back as it was, and refused where it is none."""

import json
import re

import pytest

from coordinator.errors import GateCorrupt
from coordinator.gates.state import GateState, decode, encode

FULL = GateState(
    name="sale", epoch=7, state="armed", changed_at=1.5, not_before=9.0, until=10.0, share=0.25, by="ånn", reason="„sale“",
    recent=("b", "a"),
)  # fmt: skip


@pytest.mark.parametrize("state", [FULL, GateState(name="sale")])
def test_a_stored_gate_is_read_back(state):
    assert decode("sale", encode(state)) == state
    assert decode("sale", encode(state).encode()) == state


def test_what_is_stored_is_short_and_fits_a_header():
    text = encode(FULL)
    assert text.isascii()
    assert ": " not in text
    assert ", " not in text
    assert json.loads(text)["by"] == "ånn"


def test_the_name_is_that_of_the_blob():
    assert decode("other", encode(FULL)).name == "other"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not hold a gate"),
        ("[]", "does not hold a gate"),
        (b"\xff\xfe", "does not hold a gate"),
        ('{"state":"ajar"}', "does not hold a gate"),
        ('{"epoch":"1"}', "does not hold a gate"),
    ],
)
def test_what_is_no_gate_is_refused_by_name(text, words):
    with pytest.raises(GateCorrupt, match=f"^gate sale: .*{re.escape(words)}") as caught:
        decode("sale", text)
    assert caught.value.gate == "sale"
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("text", ['{"epoch":-1}', '{"share":0}', '{"share":-0.5}', '{"share":1.01}'])
def test_bounds_are_kept(text):
    with pytest.raises(GateCorrupt, match="^gate sale: ") as caught:
        decode("sale", text)
    assert caught.value.gate == "sale"


@pytest.mark.parametrize("text", ['{"epoch":0}', '{"share":1}', '{"share":0.001}', '{"colour":"red"}'])
def test_what_is_within_them_is_read(text):
    assert decode("sale", text).name == "sale"
