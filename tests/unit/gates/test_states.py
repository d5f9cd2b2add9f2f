"""Each change of a gate, field by field, and each that is refused, in words."""

import re
from datetime import UTC, datetime

import msgspec
import pytest

from coordinator.errors import ConfigurationError, GateMoved
from coordinator.gates import state as rules
from coordinator.gates.state import GateState

WHO = {"now": 100.0, "nonce": "n9", "by": "ann", "reason": "sale"}
CLOSED = GateState(name="sale", epoch=4, state="closed", changed_at=50.0, recent=("n4", "n3"))
OPEN = GateState(name="sale", epoch=4, state="open", changed_at=50.0, recent=("n4",))
ARMED = msgspec.structs.replace(OPEN, state="armed", not_before=200.0)
CANARY = msgspec.structs.replace(OPEN, share=0.5)
ENDING = msgspec.structs.replace(OPEN, until=150.0)


def refused(words):
    return pytest.raises(ConfigurationError, match=f"^{re.escape(words)}$")


def changed(before, **fields):
    """A new epoch with these fields, and all else as of a gate that was never touched."""
    return GateState(
        name="sale", epoch=before.epoch + 1, changed_at=100.0, by="ann", reason="sale", recent=("n9", *before.recent), **fields
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "now", "phase"),
    [
        (CLOSED, 100, "closed"),
        (OPEN, 100, "open"),
        (ARMED, 199.9, "armed"),
        (ARMED, 200, "open"),
        (ENDING, 149.9, "open"),
        (ENDING, 150, "closed"),
        (msgspec.structs.replace(ARMED, until=250.0), 250, "closed"),
        (msgspec.structs.replace(CLOSED, not_before=200.0), 100, "closed"),
    ],
)
def test_what_a_gate_is_follows_from_the_clock(state, now, phase):
    assert rules.phase(state, now) == phase


@pytest.mark.parametrize(
    ("state", "now", "moment"),
    [
        (CLOSED, 1, None),
        (OPEN, 1, None),
        (ARMED, 1, 200),
        (ARMED, 200, None),
        (ENDING, 1, 150),
        (msgspec.structs.replace(ARMED, until=250.0), 1, 200),
        (msgspec.structs.replace(ARMED, until=250.0), 200, 250),
        (msgspec.structs.replace(CLOSED, until=250.0), 1, None),
    ],
)
def test_when_the_clock_alone_changes_a_gate(state, now, moment):
    assert rules.next_moment(state, now) == moment


def test_an_opening_begins_at_its_time_or_at_once():
    assert (OPEN.opened_at, ARMED.opened_at) == (50, 200)


def test_places_are_fixed_and_a_share_lets_the_lower_ones_through():
    assert rules.rollout_bucket("sale", "w-1") == 0.9247390002838508
    assert rules.rollout_bucket("sale", "w-2") != rules.rollout_bucket("stock", "w-2")
    rollout_bucket = rules.rollout_bucket("sale", "w-1")
    for share, admitted in (
        (1.0, True),
        (rollout_bucket, False),
        (rollout_bucket + 0.001, True),
        (rollout_bucket - 0.001, False),
    ):
        assert rules.admits(msgspec.structs.replace(OPEN, share=share), "w-1", 100) is admitted
    assert not rules.admits(ARMED, "w-1", 100)
    assert not rules.admits(CLOSED, "w-1", 100)


def test_a_share_of_all_admits_the_highest_place_too(monkeypatch):
    monkeypatch.setattr(
        rules, "rollout_bucket", lambda gate, identity: 1.0
    )  # what the highest digests are rounded to
    assert rules.admits(OPEN, "w-1", 100)
    assert not rules.admits(msgspec.structs.replace(OPEN, share=0.999), "w-1", 100)


# --- opening ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "options", "after"),
    [
        (CLOSED, {}, changed(CLOSED, state="open")),
        (CLOSED, {"at": 100.0}, changed(CLOSED, state="open")),
        (CLOSED, {"at": 99.0}, changed(CLOSED, state="open")),
        (CLOSED, {"at": 40.0}, changed(CLOSED, state="open")),
        (CLOSED, {"at": 100.5}, changed(CLOSED, state="armed", not_before=100.5)),
        (CLOSED, {"share": 0.25}, changed(CLOSED, state="open", share=0.25)),
        (CLOSED, {"share": 1}, changed(CLOSED, state="open", share=1)),
        (CLOSED, {"until": 100.5}, changed(CLOSED, state="open", until=100.5)),
        (
            CLOSED,
            {"at": 110.0, "until": 110.5},
            changed(CLOSED, state="armed", not_before=110.0, until=110.5),
        ),
        (ARMED, {}, changed(ARMED, state="open")),
        (ARMED, {"at": 300.0}, changed(ARMED, state="armed", not_before=300.0)),
        (CANARY, {"share": 0.75}, changed(CANARY, state="open", share=0.75)),
        (OPEN, {"until": 300.0}, changed(OPEN, state="open", until=300.0)),
        (CANARY, {"share": 0.5, "until": 300.0}, changed(CANARY, state="open", share=0.5, until=300.0)),
    ],
)
def test_open(state, options, after):
    assert rules.opened(state, **WHO, **options) == after


@pytest.mark.parametrize(
    ("state", "options"), [(OPEN, {}), (CANARY, {"share": 0.5}), (ENDING, {"until": 150.0}), (OPEN, {"at": 90.0})]
)  # fmt: skip
def test_opening_what_is_open_changes_nothing(state, options):
    assert rules.opened(state, **WHO, **options) is state


@pytest.mark.parametrize(
    ("state", "options", "words"),
    [
        (CLOSED, {"share": 0}, "gate sale: share must be above 0 and at most 1, got 0"),
        (CLOSED, {"share": 1.01}, "gate sale: share must be above 0 and at most 1, got 1.01"),
        (CLOSED, {"share": True}, "gate sale: share must be above 0 and at most 1, got True"),
        (CLOSED, {"share": "0.5"}, "gate sale: share must be above 0 and at most 1, got '0.5'"),
        (CLOSED, {"share": 2**101}, "gate sale: share must be above 0 and at most 1, got a huge number"),
        (CLOSED, {"share": 2**100}, "gate sale: share must be above 0 and at most 1, got a huge number"),
        (CLOSED, {"share": 2**100 - 1}, f"gate sale: share must be above 0 and at most 1, got {2**100 - 1}"),
        (CLOSED, {"share": 2**99}, f"gate sale: share must be above 0 and at most 1, got {2**99}"),
        (CLOSED, {"at": 39.9}, "gate sale: at is 60 s in the past; leave it out to open now"),
        (OPEN, {"at": -1e9}, "gate sale: at is 1000000100 s in the past; leave it out to open now"),
        (CLOSED, {"until": 100.0}, "gate sale: until must be later than the opening and than now"),
        (CLOSED, {"at": 110.0, "until": 110.0}, "gate sale: until must be later than the opening and than now"),
        (OPEN, {"at": 110.0}, "gate sale is open; close it before you set a time for its opening"),
        (OPEN, {"share": 0.5}, "gate sale is open for 100%; close it before you open it for 50%"),
        (CANARY, {"share": 0.25}, "gate sale is open for 50%; close it before you open it for 25%"),
    ],
)  # fmt: skip
def test_open_takes_an_opening_away_from_nobody(state, options, words):
    with refused(words):
        rules.opened(state, **WHO, **options)


# --- closing and extending ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [OPEN, ARMED, CANARY, ENDING])
def test_close(state):
    assert rules.closed(state, **WHO) == changed(state, state="closed")


@pytest.mark.parametrize("state", [CLOSED, msgspec.structs.replace(OPEN, until=100.0)])
def test_closing_what_is_closed_changes_nothing(state):
    assert rules.closed(state, **WHO) is state


@pytest.mark.parametrize(
    ("state", "until"), [(OPEN, 100.5), (ENDING, None), (ENDING, 120.0), (ARMED, 200.5), (CANARY, 120.0)]
)
def test_extend(state, until):
    fields = {"state": state.state, "not_before": state.not_before, "share": state.share}
    assert rules.extended(state, **WHO, until=until) == changed(state, until=until, **fields)
    assert rules.extended(ENDING, **WHO, until=150.0) is ENDING


@pytest.mark.parametrize(
    ("state", "until", "words"),
    [
        (CLOSED, 120.0, "gate sale is closed; there is no opening to extend, open it instead"),
        (OPEN, 100.0, "gate sale: until must be later than the opening and than now"),
        (ARMED, 200.0, "gate sale: until must be later than the opening and than now"),
    ],
)
def test_extend_is_refused(state, until, words):
    with refused(words):
        rules.extended(state, **WHO, until=until)


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ({"by": ""}, "gate sale: by must have 1-100 characters"),
        ({"by": "a" * 101}, "gate sale: by must have 1-100 characters"),
        ({"reason": "r" * 501}, "gate sale: the reason has 501 characters; at most 500"),
    ],
)
def test_who_and_why_are_bounded(who, words):
    with refused(words):
        rules.closed(OPEN, **{**WHO, **who})
    assert rules.closed(OPEN, **{**WHO, "by": "a" * 100, "reason": "r" * 500}).epoch == 5


def test_the_newest_changes_are_remembered():
    old = msgspec.structs.replace(OPEN, recent=tuple("abcdefgh"))
    assert rules.closed(old, **WHO).recent == ("n9", *"abcdefg")


def test_a_reason_is_optional():
    assert rules.opened(CLOSED, now=1.0, nonce="n", by="ann").reason == ""
    assert rules.closed(OPEN, now=1.0, nonce="n", by="ann").reason == ""
    assert rules.extended(OPEN, now=1.0, nonce="n", by="ann", until=90.0).reason == ""
    assert rules.repaired("sale", 4, now=1.0, nonce="n", by="ann").reason == ""


# --- epochs -------------------------------------------------------------------------------------------------------------


def test_an_epoch_is_raised_above_another():
    assert rules.raised(OPEN, 3) is OPEN
    assert rules.raised(OPEN, 4) == msgspec.structs.replace(OPEN, epoch=5)
    assert rules.raised(OPEN, 9) == msgspec.structs.replace(OPEN, epoch=10)


def test_a_damaged_gate_is_repaired_by_closing_it():
    assert rules.repaired("sale", 7, **WHO) == changed(GateState(epoch=7), state="closed")
    assert rules.repaired("sale", 10**30, **WHO).epoch == 1, (
        "nothing follows the largest epoch that can be stored"
    )


def test_a_change_may_be_for_one_epoch_only():
    assert rules.require_epoch(OPEN, None) is OPEN
    assert rules.require_epoch(OPEN, 4) is OPEN
    words = "gate sale is at epoch 4, not 5: it has changed; read it again"
    with pytest.raises(GateMoved, match=f"^{words}$") as caught:
        rules.require_epoch(OPEN, 5)
    assert (caught.value.gate, caught.value.epoch) == ("sale", 4)


# --- moments ------------------------------------------------------------------------------------------------------------

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


def test_a_moment_is_seconds_or_an_aware_datetime():
    assert rules.seconds_of("at", None) is None
    assert rules.seconds_of("at", NOON) == NOON.timestamp() == rules.seconds_of("at", NOON.timestamp())
    assert type(rules.seconds_of("at", 17)) is float


IN_WORDS = "at must be an aware datetime or seconds since 1970, in the years 1970 to 9998, got "


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (NOON.replace(tzinfo=None), "at has no time zone: give an aware datetime or seconds since 1970"),
        (-1, f"{IN_WORDS}-1"),
        (True, f"{IN_WORDS}True"),
        ("soon", f"{IN_WORDS}'soon'"),
        (2**101, f"{IN_WORDS}a huge number"),
        (1_800_000_000_000, f"{IN_WORDS}1800000000000; seconds, not milliseconds?"),
        (253_370_764_800_000, f"{IN_WORDS}253370764800000; seconds, not milliseconds?"),
        (253_370_764_800_001, f"{IN_WORDS}253370764800001"),
        (float("nan"), f"{IN_WORDS}nan"),
    ],
)
def test_what_is_no_moment_is_refused(when, words):
    with refused(words):
        rules.seconds_of("at", when)


def test_a_reason_with_control_characters_is_refused_in_words():
    with pytest.raises(
        ConfigurationError, match=r"gate sale: Expected text without control characters .*\$\.reason"
    ):
        rules.encode(
            rules.closed(GateState(name="sale", state="open"), now=1.0, nonce="n", by="ann", reason="\x01")
        )
