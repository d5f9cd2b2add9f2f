"""Which version two ends speak, and what of a newer end is skipped."""

import pytest

from coordinator.errors import ProtocolViolation
from coordinator.realtime import protocol


@pytest.mark.parametrize(
    ("ours", "theirs", "spoken"),
    [
        ((1, 1), (0, 1), 1),
        ((1, 1), (1, 1), 1),
        ((1, 2), (0, 1), 1),
        ((1, 1), (1, 3), 1),
        ((1, 2), (1, 1), 1),
        ((1, 2), (2, 2), 2),
        ((2, 4), (1, 3), 3),
        ((1, 1), (2, 2), None),
        ((1, 1), (0, 9), None),
        ((2, 3), (0, 1), None),
        ((3, 4), (1, 2), None),
        ((1, 1), (3, 1), None),
    ],
)
def test_the_newest_version_that_both_know_is_spoken(
    monkeypatch: pytest.MonkeyPatch, ours: tuple[int, int], theirs: tuple[int, int], spoken: int | None
) -> None:
    """Spans from the oldest to the newest; an oldest of 0 is that of ends that know of no spans."""
    monkeypatch.setattr(protocol, "OLDEST", ours[0])
    monkeypatch.setattr(protocol, "VERSION", ours[1])
    oldest, newest = theirs
    if spoken is None:
        with pytest.raises(ProtocolViolation, match=r"protocol version .*; this end knows"):
            protocol.agreed(newest, oldest)
    else:
        assert protocol.agreed(newest, oldest) == spoken


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        ('{"type":"promote","to":"captain"}', "promote"),
        ('{"type":"command","verb":"dance","id":"1","steps":3}', "command dance"),
    ],
)
def test_what_only_newer_hubs_say_is_told_apart_from_nonsense(frame: str, what: str) -> None:
    assert protocol.decode_from_hub(frame) == protocol.Unknown(what)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "[]",
        '{"type":7}',
        '{"hint":{"topic":"gate:a"}}',
        '{"type":"hint","hint":{"epoch":3}}',
        '{"type":"command","verb":"stop"}',
        '{"type":"' + "x" * protocol.MAX_FRAME_BYTES + '"}',
    ],
)
def test_nonsense_is_still_refused(frame: str) -> None:
    with pytest.raises(ProtocolViolation):
        protocol.decode_from_hub(frame)
