"""``python -m coordinator doctor``: finds what keeps a worker from working here, and says what to do.

Finds faults of settings, network, credentials and rights, clock, names, versions and hub. Does not judge the load, the
messages or the handlers; a finding is true for the moment it was made, on this machine, with these settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.config import StorageConfig
from coordinator.doctor import hub, names, reach, rights, software
from coordinator.doctor.findings import Finding, Verdict
from coordinator.errors import ConfigurationError
from coordinator.storage import Storage

__all__ = ["Finding", "Verdict", "examine"]

STORAGE_CURE = (
    "Set AZURE_STORAGE_CONNECTION_STRING to the whole connection string, or AZURE_STORAGE_ACCOUNT_URL to "
    "https://ACCOUNT.blob.core.windows.net."
)


async def examine(
    environ: Mapping[str, str],
    *,
    queues: Iterable[str] = (),
    write: bool = True,
    clock: Clock = SYSTEM_CLOCK,
    installed: Callable[[str], str] = version,
) -> list[Finding]:
    """Look at everything that a worker with this environment needs, in the order in which one depends on the other.

    `queues` are looked up by name. With `write` (default) rights are tried out on a container, a queue and a table made
    for it and deleted again, about 15 requests; without, nothing is written and rights stay unknown.
    """
    findings = list(software.check(installed))
    prefix = environ.get("KENNEL_PREFIX") or StorageConfig().prefix
    storage: Storage | None = None
    try:
        StorageConfig(prefix=prefix)
    except ConfigurationError as error:
        findings.append(Finding("prefix", "fault", str(error), "Correct KENNEL_PREFIX, for example kennel-."))
    else:
        try:
            storage = Storage.from_env(environ, clock=clock)
        except ConfigurationError as error:
            findings.append(Finding("storage account", "fault", str(error), STORAGE_CURE))
    if storage is not None:
        try:
            findings += await _storage(storage, environ, queues, write)
        finally:
            await storage.aclose()
    findings += await hub.check(environ, prefix)
    return findings


async def _storage(
    storage: Storage, environ: Mapping[str, str], queues: Iterable[str], write: bool
) -> list[Finding]:
    findings = [Finding("storage account", "ok", storage.endpoints.account)]
    if environ.get("AZURE_STORAGE_CONNECTION_STRING") and environ.get("AZURE_STORAGE_ACCOUNT_URL"):
        found = (
            "both AZURE_STORAGE_CONNECTION_STRING and AZURE_STORAGE_ACCOUNT_URL are set; the first is used"
        )
        findings.append(Finding("storage settings", "warning", found, "Unset the one that is not meant."))
    findings += rights.check_signature(storage.endpoints.credential, storage.clock.time())
    reached = await reach.check(storage.endpoints, storage.clock)
    findings += reached.findings
    for service in reach.SERVICES:
        if service in reached.services and write:
            findings.append(await rights.check(storage, service))
    if "blob" in reached.services:
        findings.append(await names.check_prefix(storage))
    return [*findings, *await names.check_queues(storage, queues, answers="queue" in reached.services)]
