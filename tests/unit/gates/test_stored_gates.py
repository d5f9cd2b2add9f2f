"""A gate as it is stored: read back as it was, and refused where it is none."""

import json
import re

import pytest

from coordinator.errors import ConfigurationError, GateCorrupt
from coordinator.gates.state import MAX_BYTES, GateState, decode, encode

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


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ('{"epoch":7,"share":0}', 7),
        ('{"share":0}', 0),
        ('{"epoch":-1}', 0),
        ("nonsense", 0),
        (b"\xff", 0),
        ('{"epoch":7,"share":0}' + " " * MAX_BYTES, 7),
    ],
)
def test_a_damaged_gate_says_its_version_and_what_is_left_of_its_epoch(text, epoch):
    with pytest.raises(GateCorrupt) as caught:
        decode("sale", text, "e-1")
    assert (caught.value.gate, caught.value.etag, caught.value.epoch) == ("sale", "e-1", epoch)
    with pytest.raises(GateCorrupt) as caught:
        decode("sale", text)
    assert caught.value.etag == ""


def test_a_gate_may_fill_its_bytes_and_no_more():
    text = encode(FULL)
    assert decode("sale", text + " " * (MAX_BYTES - len(text))) == FULL
    words = re.escape(
        f"({MAX_BYTES + 1} bytes; a gate has at most {MAX_BYTES}). Nobody passes; close the gate to repair it"
    )
    with pytest.raises(GateCorrupt, match=f"^gate sale: the blob does not hold a gate {words}$"):
        decode("sale", text + " " * (MAX_BYTES + 1 - len(text)))


def test_what_could_not_be_read_again_is_not_stored():
    with pytest.raises(ConfigurationError, match="^gate sale: .*by"):
        encode(GateState(name="sale", by="a\x00"))
