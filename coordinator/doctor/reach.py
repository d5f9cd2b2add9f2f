"""Does each service answer, is it the storage service, and what time does it have?"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from coordinator.azure.credentials import Endpoints
from coordinator.clock import Clock, ClockOffset, parse_date
from coordinator.doctor.findings import Finding

SERVICES = ("blob", "queue", "table")
QUESTIONS = {"blob": "/?comp=list", "queue": "/?comp=list", "table": "/Tables"}
ANSWER_SECONDS = 5.0
SIGNATURE_SECONDS = 15 * 60.0
"""Requests signed by a clock that is farther off than this are refused."""
STEP_SECONDS = 2.0
"""NTP keeps clocks far closer than this."""


@dataclass(frozen=True)
class Reached:
    """The findings, which services answered, and what is known of the clock."""

    findings: tuple[Finding, ...]
    services: frozenset[str]


async def check(endpoints: Endpoints, clock: Clock) -> Reached:
    """Ask each service a question without signature: any answer of the storage service will do, a refusal included."""
    findings: list[Finding] = []
    answered: set[str] = set()
    offset = ClockOffset()
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        for service in SERVICES:
            url = getattr(endpoints, service)
            host = urlsplit(url).netloc
            name = f"{service} service"
            sent = clock.time()
            try:
                async with session.get(url.rstrip("/") + QUESTIONS[service], allow_redirects=False) as answer:
                    headers, received = answer.headers, clock.time()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                findings.append(_silence(name, host, error))
                continue
            if "x-ms-request-id" not in headers:
                found = f"{host} answers ({answer.status}), but not as Azure Storage does"
                cure = "Another program or a proxy answers there: correct the address, or let storage traffic pass the proxy."
                findings.append(Finding(name, "fault", found, cure))
                continue
            answered.add(service)
            findings.append(Finding(name, "ok", f"{host} answers within {(received - sent) * 1000:.0f} ms"))
            date = parse_date(headers.get("Date"))
            if date is not None:
                offset = offset.observed(sent=sent, received=received, date=date)
    findings.append(judge(offset))
    return Reached(tuple(findings), frozenset(answered))


def judge(offset: ClockOffset) -> Finding:
    """The verdict on the clock."""
    if not offset.is_known:
        return Finding("clock", "skipped", "no service reported the time")
    seconds = -offset.correction
    where = f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the storage service"
    cure = "Set the clock and keep it by NTP: timedatectl set-ntp true"
    if abs(seconds) > SIGNATURE_SECONDS:
        return Finding("clock", "fault", f"{where}: signed requests are refused beyond 15 minutes", cure)
    if abs(seconds) > STEP_SECONDS:
        return Finding("clock", "warning", f"{where}: times in ledgers, logs and audits will be wrong", cure)
    return Finding("clock", "ok", "agrees with the storage service, as far as its answers show (±1 s)")


def _silence(name: str, host: str, error: BaseException) -> Finding:
    """Why there was no answer, and what to do."""
    local = host.split(":")[0] in ("127.0.0.1", "localhost")
    match error:
        case aiohttp.ClientConnectorDNSError():
            found = f"host {host} not found"
            cure = (
                "Check the account's name. Premium accounts have no queues and tables: take a general-purpose v2 account. "
                "Behind private endpoints, link the private DNS zone of each of the three services."
            )
        case aiohttp.ClientSSLError() | ssl.SSLError():
            found = f"{host} has an untrusted certificate ({type(error).__name__})"
            cure = (
                "If a proxy inspects traffic, put its certificate in a bundle and name it in SSL_CERT_FILE and "
                "REQUESTS_CA_BUNDLE; if the emulator is meant, use http in its address."
            )
        case TimeoutError() | asyncio.TimeoutError():
            found = f"{host} did not answer within {ANSWER_SECONDS:.0f} s"
            cure = "A firewall may drop the traffic: allow this machine in the account's network rules, or use a private endpoint."
        case _:
            found = f"connection refused at {host} ({type(error).__name__})"
            cure = (
                "Start the emulator, and check its ports in the connection string."
                if local
                else "Check the address, the firewall of this machine and the account's network rules."
            )
    return Finding(name, "fault", found, cure)
