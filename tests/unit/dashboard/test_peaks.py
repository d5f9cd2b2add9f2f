"""Promises of the highest epochs in the database."""

from __future__ import annotations

import pytest

from dashboard.live import releases as peaks
from dashboard.live.releases import Peak

pytestmark = pytest.mark.django_db


def test_what_is_kept_rises_and_never_falls() -> None:
    peaks.save_peaks("a/", {"one": Peak(3, None), "two": Peak(5, 100.0)})
    peaks.save_peaks("a/", {"one": Peak(2, None), "two": Peak(5, None), "three": Peak(1, None)})
    assert peaks.load_peaks("a/") == {"one": Peak(3, None), "two": Peak(5, None), "three": Peak(1, None)}


def test_gates_of_one_name_in_two_accounts_are_two() -> None:
    peaks.save_peaks("a/", {"one": Peak(3, None)})
    assert peaks.load_peaks("b/") == {}
