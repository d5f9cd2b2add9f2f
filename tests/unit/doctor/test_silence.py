"""What the doctor says of services and hubs that do not answer as they should."""

from __future__ import annotations

import ssl

import pytest
from azure.core.credentials import AzureSasCredential

from coordinator.doctor import examine, hub, reach, rights


@pytest.mark.parametrize(
    ("error", "found", "cure"),
    [
        (TimeoutError(), "did not answer within 5 s", "network rules"),
        (ssl.SSLError("self-signed"), "has an untrusted certificate (SSLError)", "SSL_CERT_FILE"),
        (ConnectionRefusedError(), "(ConnectionRefusedError)", "firewall of this machine"),
    ],
)
def test_a_service_that_does_not_answer_is_a_fault_with_its_cause(
    error: Exception, found: str, cure: str
) -> None:
    finding = reach._silence("blob service", "shop.blob.core.windows.net", error)
    assert finding.verdict == "fault" and found in finding.found and cure in finding.cure


@pytest.mark.parametrize(
    ("status", "cure"), [(401, "Create a token"), (404, "end in /ws/workers/"), (502, "the proxy before it")]
)
def test_a_hub_that_refuses_is_a_fault_with_its_status(status: int, cure: str) -> None:
    finding = hub._refused("shop.example.org", status)
    assert finding.verdict == "fault" and str(status) in finding.found and cure in finding.cure


@pytest.mark.parametrize(
    ("url", "warned"), [("ws://hub.invalid/ws/workers/", True), ("wss://hub.invalid/ws/workers/", False)]
)
async def test_a_token_that_travels_in_the_clear_is_warned_of(url: str, warned: bool) -> None:
    environ = {"KENNEL_HUB_URL": url, "KENNEL_WORKER_TOKEN": "sesame"}
    findings = {each.check: each for each in await hub.check(environ, "kennel-")}
    assert findings["hub"].verdict == "fault" and "no connection to hub.invalid" in findings["hub"].found
    assert findings["dashboard"].verdict == "skipped"
    assert ("hub encryption" in findings) is warned


async def test_two_settings_for_one_account_are_warned_of(unused_tcp_port: int) -> None:
    endpoints = "".join(
        f"{s}Endpoint=http://127.0.0.1:{unused_tcp_port}/a;" for s in ("Blob", "Queue", "Table")
    )
    environ = {
        "AZURE_STORAGE_CONNECTION_STRING": f"AccountName=a;AccountKey=c2VzYW1l;{endpoints}",
        "AZURE_STORAGE_ACCOUNT_URL": "https://a.blob.core.windows.net",
    }
    findings = {each.check: each for each in await examine(environ, queues=["work"])}
    assert findings["storage settings"].verdict == "warning"
    assert findings["blob service"].verdict == "fault" and findings["queue work"].verdict == "skipped"


@pytest.mark.parametrize("expiry", ["", "soon", "2026-13-45"])
def test_a_signature_whose_end_cannot_be_read_is_not_judged(expiry: str) -> None:
    assert list(rights.check_signature(AzureSasCredential(f"sv=1&se={expiry}&sig=1"), 0.0)) == []


def test_a_signature_without_a_zone_ends_in_utc() -> None:
    signature = AzureSasCredential("se=2026-01-01T00:00:00&sig=1")
    (finding,) = rights.check_signature(signature, 1_767_225_599.0)
    assert finding.verdict == "warning"
    (finding,) = rights.check_signature(signature, 1_767_225_601.0)
    assert finding.verdict == "fault"
