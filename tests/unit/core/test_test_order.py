"""What `make test` relies on, so that no process is left with a long group of tests at the end."""

from __future__ import annotations

import pytest

from tests.conftest import BROWSER, LONGEST_FIRST, TESTS, WAITING, group_of, rank


def test_tests_run_with_the_longest_groups_first(request: pytest.FixtureRequest) -> None:
    ranks = [rank(group_of(item.path)) for item in request.session.items]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("group", sorted({*LONGEST_FIRST, *WAITING} - {BROWSER}))
def test_a_group_that_is_named_there_exists(group: str) -> None:
    assert (TESTS / f"{group}.py").is_file()
