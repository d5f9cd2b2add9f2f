"""``python -m coordinator scale …``: a scaling agent as a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import click

from coordinator.errors import ConfigurationError
from coordinator.scaling.azure import PoolReports, leader_names, make_scaling_agent
from coordinator.scaling.drivers import Driver, DryRunDriver
from coordinator.scaling.kubernetes import KubernetesDriver
from coordinator.scaling.local import DRAIN_SECONDS, LocalProcessDriver
from coordinator.scaling.observing import PoolObserver, QueueObserver
from coordinator.scaling.policy import decode_policy
from coordinator.storage import Storage
from coordinator.worker import Worker

MakeDriver = Callable[[Storage, PoolReports], Driver]


@click.command()
@click.argument("pool")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--queue",
    "queues",
    required=True,
    multiple=True,
    help="The queue that the pool works on; may be repeated.",
)
@click.option(
    "--gate",
    "gate_name",
    default="",
    help="Gate of the pool: while it is closed, no message counts as late.",
)
@click.option(
    "--policy", default="{}", help='Policy as JSON, used until an operator saves another: {"maximum": 20}.'
)
@click.option(
    "--deployment", default="", help="Scale this Kubernetes deployment (of the pod's own namespace)."
)
@click.option(
    "--state", type=click.Path(path_type=Path), help="Folder that records the processes of COMMAND."
)
@click.option(
    "--figure",
    is_flag=True,
    help="Only decide and record: KEDA or another scaler follows the dashboard's figure.",
)
@click.option(
    "--dry-run", is_flag=True, help="Change nothing: decide beside the live agent, recorded as POOL-dry-run."
)
@click.option(
    "--every", "every_seconds", default=15.0, show_default=True, help="Seconds between two decisions."
)
@click.option(
    "--drain-seconds",
    default=DRAIN_SECONDS,
    show_default=True,
    help="How long a removed process may still work on its jobs.",
)
@click.option(
    "--drain-at-end",
    is_flag=True,
    help="Drain the whole pool on stop. Use it for an agent that runs alone.",
)
def scale(
    pool: str,
    command: tuple[str, ...],
    queues: tuple[str, ...],
    gate_name: str,
    policy: str,
    deployment: str,
    state: Path | None,
    figure: bool,
    dry_run: bool,
    every_seconds: float,
    drain_seconds: float,
    drain_at_end: bool,
) -> None:
    """Keep POOL as large as its policy asks for: a deployment's pods, or processes of this machine that run COMMAND.

    Any number of agents may run; one is elected and decides. Give COMMAND after "--", with --state.
    """
    make = _driver(
        pool, command, deployment=deployment, state=state, idle=figure + dry_run, drain_seconds=drain_seconds
    )
    first = decode_policy(policy)
    # Decisions that change nothing neither take the place of the live agent nor that of its record.
    name = f"{pool}-dry-run" if dry_run else pool
    worker = Worker(f"scale-{name}")
    storage = worker.storage
    reports = PoolReports(storage, pool)
    driver = make(storage, reports)
    if drain_at_end and not isinstance(driver, LocalProcessDriver):
        raise ConfigurationError("--drain-at-end works only with processes of this machine")
    gate = storage.gate(gate_name) if gate_name else None
    observers = [
        QueueObserver(
            storage.queue(queue),
            target_seconds=first.target_seconds,
            per_second=first.instance_per_second,
            slots=first.slots,
            reports=reports.of(queue),
            gate=gate,
        )
        for queue in queues
    ]
    agent = make_scaling_agent(
        storage,
        name,
        driver,
        observe=PoolObserver(observers),
        policy=first,
        every_seconds=every_seconds,
        queues=queues,
        gate=gate_name,
    )
    worker.lead(f"scale-{name}", again="campaign")(agent.lead)
    asyncio.run(_run(worker, driver if drain_at_end else None))


async def _run(worker: Worker, drained: Driver | None) -> None:
    try:
        await worker.run()
    finally:
        if isinstance(drained, LocalProcessDriver):
            await drained.close()


def _driver(
    pool: str,
    command: tuple[str, ...],
    *,
    deployment: str,
    state: Path | None,
    idle: int,
    drain_seconds: float,
) -> MakeDriver:
    """What makes the one driver that the options name."""
    if bool(command) + bool(deployment) + idle != 1:
        raise click.UsageError("give one of: a COMMAND after --, --deployment, --figure, --dry-run")
    if command and state is None:
        raise click.UsageError("a COMMAND needs --state, the folder that records its processes")

    def make(storage: Storage, reports: PoolReports) -> Driver:
        async def leaders() -> set[str]:
            return await leader_names(storage)

        if idle:
            return DryRunDriver(reports.workers)
        if deployment:
            return KubernetesDriver.in_cluster(deployment, leaders=leaders, jobs=reports.jobs)
        assert state is not None
        return LocalProcessDriver(
            pool, command, state=state, leaders=leaders, jobs=reports.jobs, drain_seconds=drain_seconds
        )

    return make
