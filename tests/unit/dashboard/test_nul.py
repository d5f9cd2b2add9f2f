"""Text that no database keeps is refused at the door."""

from __future__ import annotations

import pytest
from django.test import Client

from dashboard.hub.operators import _decode


@pytest.mark.parametrize("address", ["/audit/?q=a%00b", "/gates/?at=%00", "/%00", "/api/v1/audit?q=%00"])
def test_an_address_with_nul_is_a_fault_of_the_caller(address: str) -> None:
    assert Client().get(address).status_code == 400


@pytest.mark.parametrize(
    "frame",
    [
        '{"action": "unleash", "target": "a\\u0000b"}',
        '{"action": "unleash", "target": "a", "reason": "\\ud800"}',
        '{"action": "unleash", "target": "a", "more": {"\\udfff": [1, "\\u0000"]}}',
    ],
)
def test_a_frame_of_a_browser_with_nul_or_half_a_character_is_refused(frame: str) -> None:
    assert _decode(frame) == "the frame holds NUL or half a character"
