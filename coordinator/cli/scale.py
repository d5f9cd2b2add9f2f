"""``python -m coordinator scale …``: a scaling agent as a process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import click

from coordinator.errors import ConfigurationError
from coordinator.scaling.azure import leader_names, make_scaling_agent
from coordinator.scaling.drivers import Driver, DryRunDriver
from coordinator.scaling.kubernetes import KubernetesDriver
from coordinator.scaling.local import LocalProcessDriver
from coordinator.scaling.observing import QueueObserver
from coordinator.scaling.policy import ScalingPolicy, decode_policy
from coordinator.storage import Storage

MakeDriver = Callable[[Storage], Driver]


@click.command()
@click.argument("pool")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--queue", "queue_name", required=True, help="The queue that the pool works on.")
@click.option(
    "--gate",
    "gate_name",
    default="",
    help="The gate that the pool waits at: while it holds, nothing is late.",
)
@click.option(
    "--policy", default="{}", help='JSON, in force until an operator stores another: {"maximum": 20}.'
)
@click.option(
    "--deployment", default="", help="Scale this Kubernetes deployment (of the pod's own namespace)."
)
@click.option(
    "--state", type=click.Path(path_type=Path), help="Folder in which the processes of COMMAND are noted."
)
@click.option("--dry-run", is_flag=True, help="Change nothing, only decide and record.")
@click.option(
    "--every", "every_seconds", default=15.0, show_default=True, help="Seconds between two decisions."
)
@click.option(
    "--drain-at-end",
    is_flag=True,
    help="When told to stop, drain the whole pool; for an agent without others.",
)
def scale(
    pool: str,
    command: tuple[str, ...],
    queue_name: str,
    gate_name: str,
    policy: str,
    deployment: str,
    state: Path | None,
    dry_run: bool,
    every_seconds: float,
    drain_at_end: bool,
) -> None:
    """Keep POOL as large as its policy asks for: a deployment's pods, or processes of this machine that run COMMAND.

    Any number of agents may run; one is elected and decides. Give COMMAND after "--", with --state.
    """
    make = _driver(pool, command, deployment=deployment, state=state, dry_run=dry_run)
    asyncio.run(_run(pool, make, decode_policy(policy), queue_name, gate_name, every_seconds, drain_at_end))


def _driver(
    pool: str, command: tuple[str, ...], *, deployment: str, state: Path | None, dry_run: bool
) -> MakeDriver:
    """What makes the one driver that the options name."""
    if sum((bool(command), bool(deployment), dry_run)) != 1:
        raise click.UsageError("give one of: a COMMAND after --, --deployment, --dry-run")
    if command and state is None:
        raise click.UsageError("a COMMAND needs --state, the folder in which its processes are noted")

    def make(storage: Storage) -> Driver:
        async def leaders() -> set[str]:
            return await leader_names(storage)

        if dry_run:
            return DryRunDriver()
        if deployment:
            return KubernetesDriver.in_cluster(deployment, leaders=leaders)
        assert state is not None
        return LocalProcessDriver(pool, command, state=state, leaders=leaders)

    return make


async def _run(
    pool: str,
    make: MakeDriver,
    policy: ScalingPolicy,
    queue_name: str,
    gate_name: str,
    every_seconds: float,
    drain_at_end: bool,
) -> None:
    async with Storage.from_env() as storage:
        driver = make(storage)
        if drain_at_end and not isinstance(driver, LocalProcessDriver):
            raise ConfigurationError("only processes of this machine can be drained at the end")
        gate = storage.gate(gate_name) if gate_name else None
        observe = QueueObserver(storage.queue(queue_name), gate=gate)
        agent = make_scaling_agent(
            storage, pool, driver, observe=observe, policy=policy, every_seconds=every_seconds
        )
        election = storage.election(f"scale-{pool}")
        work = asyncio.create_task(election.run(agent.lead), name=f"scale {pool}")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await work
        finally:
            if drain_at_end and isinstance(driver, LocalProcessDriver):
                await driver.close()
