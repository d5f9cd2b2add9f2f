"""``python -m coordinator plan``: what a load needs, by the published limits."""

from __future__ import annotations

import re

import click

from coordinator.cost import DEFAULT_PRICES
from coordinator.planning import DEFAULT_LIMITS, Load, Plan
from coordinator.planning import plan as make_plan

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


class _Number(click.ParamType[float]):
    """A number such as 2500, 20k or 100M."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(
            r"(\d+(?:\.\d+)?)([kmgb]?)", str(value).replace(",", "").replace("_", "").lower()
        )
        if found is None:
            self.fail(f"{value!r} is not a number such as 2500, 20k or 100M", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.command()
@click.option("--orders-per-day", type=_Number(), required=True, help="Items a day, such as 100M.")
@click.option(
    "--bytes", "item_bytes", type=_Number(), default="1000", show_default=True, help="Bytes of an item."
)
@click.option("--workers", type=_Number(), default="1", show_default=True, help="Processes that listen.")
@click.option("--latency", default=60.0, show_default=True, help="Seconds within which an item must be done.")
@click.option(
    "--handler-seconds", default=0.1, show_default=True, help="How long a handler takes for an item."
)
@click.option("--slots", default=10, show_default=True, help="Handlers that a worker runs at a time.")
@click.option("--peak", default=2.5, show_default=True, help="Busiest moment, as a multiple of the mean.")
@click.option("--rows", default=1.0, show_default=True, help="Table rows written for an item.")
@click.option(
    "--items-per-message", default=1, show_default=True, help="Items that a producer puts at a time."
)
@click.option("--instance-hour", default=0.0, help="Price of an hour of an instance, to add its cost.")
def plan(
    orders_per_day: float,
    item_bytes: float,
    workers: float,
    latency: float,
    handler_seconds: float,
    slots: int,
    peak: float,
    rows: float,
    items_per_message: int,
    instance_hour: float,
) -> None:
    """Calculate what a load needs: accounts, queues, partitions, instances, requests and money.

    Simulates a day within the limits that the service publishes. Sends nothing.
    """
    load = Load(
        orders_per_day=orders_per_day,
        item_bytes=round(item_bytes),
        workers=round(workers),
        latency_seconds=latency,
        handler_seconds=handler_seconds,
        slots=slots,
        peak=peak,
        rows=rows,
        items_per_message=items_per_message,
    )
    for line in _described(make_plan(load), instance_hour):
        click.echo(line)


def _described(made: Plan, instance_hour: float) -> list[str]:
    load, layout, course, limits = made.load, made.layout, made.course, DEFAULT_LIMITS
    lines = [
        f"{load.orders_per_day:,.0f} items a day: {load.orders_per_day / 86_400:,.0f}/s, {made.peak_per_second:,.0f}/s at the peak",
        f"accounts    {layout.accounts:>7,}   {course.account:.0%} used at the peak, of {limits.share:.0%} of {limits.account:,.0f} requests/s each",
        f"queues      {layout.queues:>7,}   {course.queue:.0%} used, of {limits.share:.0%} of {limits.queue:,.0f} requests/s each",
        f"partitions  {layout.partitions:>7,}   {course.partition:.0%} used, of {limits.share:.0%} of {limits.partition:,.0f} rows/s each",
        f"instances   {layout.instances:>7,}   at the peak; the longest wait is {course.longest_seconds:,.1f} s of {load.latency_seconds:g} s",
        f"range_size  {made.range_size:>7,}   order numbers that a worker reserves at a time",
    ]
    total = sum(made.requests.values())
    kinds = ", ".join(f"{name} {number:,.0f}" for name, number in made.requests.items())
    lines.append(f"requests a day  {total:,.0f} ({kinds})")
    lines.append(f"cost a day      ${made.dollars:,.2f} for requests, by prices of {DEFAULT_PRICES.as_of}")
    hours = f"instance hours  {made.instance_hours:,.1f} at least"
    if instance_hour:
        hours += f", ${made.instance_hours * instance_hour:,.2f} a day"
    lines.append(hours)
    lines += [f"note: {note}" for note in made.notes]
    lines.append(f"limits as of {limits.as_of}: {limits.source}")
    return lines
