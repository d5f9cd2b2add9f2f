"""What the doctor concludes from what it sees."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from coordinator.cli.doctor import describe
from coordinator.clock import ClockOffset
from coordinator.doctor import rights, software
from coordinator.doctor.findings import Finding
from coordinator.doctor.reach import judge

PROJECT = Path(__file__).resolve().parents[3]


def new_enough(name: str) -> str:
    return "9999.0"


def test_what_is_needed_is_what_the_package_declares() -> None:
    needed = software.declared()
    assert needed == tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert all(re.fullmatch(r"[a-z0-9-]+>=[0-9.]+", line) for line in needed)


def test_a_copy_without_its_list_is_not_called_right() -> None:
    _, libraries = software.check(new_enough, needed=())
    assert libraries.verdict == "skipped"


def test_software_that_is_new_enough_is_well() -> None:
    assert {finding.verdict for finding in software.check(new_enough)} == {"ok"}


def test_an_old_python_is_a_fault() -> None:
    python, _ = software.check(new_enough, python=(3, 10, 4))
    assert (python.verdict, python.found) == ("fault", "Python 3.10.4")


@pytest.mark.parametrize(("version", "verdict"), [("12.22.9", "fault"), ("12.23.0b1", "ok"), ("12.23", "ok")])
def test_an_old_library_is_named_with_the_command_that_renews_it(version: str, verdict: str) -> None:
    _, libraries = software.check(lambda name: version if name == "azure-storage-blob" else "9999")
    assert libraries.verdict == verdict
    if verdict == "fault":
        assert "azure-storage-blob 12.22.9 is older than 12.23" in libraries.found
        assert libraries.cure.endswith("--upgrade 'azure-storage-blob>=12.23'")


def test_a_missing_library_is_named() -> None:
    def installed(name: str) -> str:
        if name == "msgspec":
            raise PackageNotFoundError(name)
        return "9999"

    _, libraries = software.check(installed)
    assert libraries.verdict == "fault" and "msgspec is not installed" in libraries.found


@pytest.mark.parametrize(
    ("ahead", "verdict", "words"),
    [
        (0.0, "ok", "agrees"),
        (-0.9, "ok", "agrees"),
        (60.0, "warning", "60 s ahead of"),
        (-60.0, "warning", "60 s behind"),
        (3600.0, "fault", "refused"),
        (-3600.0, "fault", "refused"),
    ],
)
def test_the_clock_is_judged_by_how_far_off_it_is(ahead: float, verdict: str, words: str) -> None:
    now = 1_700_000_000.0
    offset = ClockOffset().observed(sent=now + ahead, received=now + ahead + 0.01, date=now)
    finding = judge(offset)
    assert finding.verdict == verdict and words in finding.found


def test_a_clock_that_nobody_compared_is_not_called_right() -> None:
    assert judge(ClockOffset()).verdict == "skipped"


class Identity:
    def get_token(self) -> None: ...


@pytest.mark.parametrize(
    ("credential", "code", "words"),
    [
        (
            AzureNamedKeyCredential("account", "key"),
            "AuthenticationFailed",
            "copy the connection string again",
        ),
        (AzureSasCredential("sig=1"), "AuthenticationFailed", "expired or was cut off"),
        (AzureSasCredential("sig=1"), "AuthorizationPermissionMismatch", "ss=q srt=sco"),
        (Identity(), "AuthorizationPermissionMismatch", "Storage Queue Data Contributor"),
        (Identity(), "", "managed identity"),
    ],
)
def test_the_cure_of_a_refusal_depends_on_the_credential(credential: object, code: str, words: str) -> None:
    assert words in rights.cure("queue", credential, code)  # type: ignore[arg-type]


@pytest.mark.parametrize("verdict", ["warning", "fault", "skipped"])
def test_a_finding_is_shown_with_its_cure(verdict: str) -> None:
    shown = describe(Finding("clock", verdict, "an hour ahead", "Set it."))  # type: ignore[arg-type]
    assert "clock" in shown and "an hour ahead" in shown and re.search(r"→ Set it\.", shown)
