"""What requests may hold: types and bounds. Strict: a number is no text, and what is not named is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ninja import Path, Query, Schema
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from coordinator.bounds import is_printable
from coordinator.cost import DEFAULT_PRICES
from coordinator.queues.rules import Steps, TargetLatency
from coordinator.scaling.policy import ScalingPolicy
from dashboard.api.v1.schema import described
from dashboard.core.permissions import NEW
from dashboard.live.releases import FAR_SECONDS

# As `coordinator.config.check_name`, without looking ahead.
NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"

KEY = r"^[^\x00-\x1f\x7f-\x9f/\\#?%]+$"  # of tables
_STORABLE = r"^[^\x00]*$"  # NUL cannot be kept by every database
_INSTANCE = r"^[A-Za-z0-9._:@-]+$"
_PATTERNS = r"^[A-Za-z0-9._*?@:-]+( [A-Za-z0-9._*?@:-]+)*$"
_TITLE = r"^[^\x00]*\S[^\x00]*$"
_FIGURE = r"^[a-z._]+$"
FORMS = {
    NAME: "must be lower-case letters, digits and single dashes",
    KEY: "must not contain control characters or any of / \\ # ? %",
    _STORABLE: "must not contain the character NUL",
    _INSTANCE: "must be letters, digits, dots, colons, dashes, underscores and @",
    _PATTERNS: "must be names with * and ?, separated by single spaces",
    _FIGURE: "must be lower-case letters, dots and underscores",
    _TITLE: "must not be blank nor contain the character NUL",
}
"""What to say of a text that does not match."""


def _printable(text: str) -> str:
    if not is_printable(text):
        raise ValueError("must not contain control characters or marks that turn the direction of text")
    return text


_Name = Annotated[str, StringConstraints(pattern=NAME, min_length=3, max_length=48)]
Name = Annotated[_Name, Path(description="3-48 lower-case letters, digits and single dashes.")]
QueueName = Annotated[
    str,
    StringConstraints(pattern=NAME, min_length=3, max_length=63),
    Path(description="A queue's name, those of poison queues included."),
]
Instance = Annotated[
    str,
    StringConstraints(pattern=_INSTANCE, min_length=1, max_length=200),
    Path(description="The `instance` of a worker: one for each start of its process."),
]
Text = Annotated[str, StringConstraints(pattern=_STORABLE, max_length=500), AfterValidator(_printable)]
Search = Annotated[str, StringConstraints(pattern=_STORABLE, max_length=200)]
Limit = Annotated[int, Query(ge=1, le=500, description="At most so many in one page.")]
FleetLimit = Annotated[
    int | None, Query(ge=1, le=500, description="At most so many workers; all if left out.")
]
# All in one: beside constraints of its own, ninja drops the default of a parameter, and demands it.
Cursor = Annotated[str, Query(pattern=_STORABLE, max_length=300, description="`next` of the page before.")]
ActNumber = Annotated[int, Path(ge=1, le=2**63 - 1, description="The `id` of an act on poison messages.")]
Presence = Annotated[Literal["", "ok", "late", "lost"], Query(description="Only workers of this presence.")]
Number = Annotated[int, Query(ge=1, le=2**63 - 1, description="Only the range that holds this number.")]


class _Body(Schema):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Why(_Body):
    """Why it is done; in the audit, and shown to others."""

    reason: Text = ""


class RepairedStep(Why):
    """The step of a stuck saga that was undone by hand."""

    step: Annotated[str, StringConstraints(pattern=_STORABLE, min_length=1, max_length=200)]


class NewGate(Why):
    """A gate to make, closed."""

    name: _Name


class Opening(Why):
    """How a gate opens: now or `at` a moment to come (seconds since 1970), `until` one, for all or for a `share` of the fleet."""

    at: Annotated[float, Field(ge=0, le=FAR_SECONDS)] | None = None
    until: Annotated[float, Field(ge=0, le=FAR_SECONDS)] | None = None
    share: Annotated[float, Field(gt=0, le=1)] = 1.0


class Chosen(Why):
    """Messages of a poison queue, by their ids there."""

    ids: list[Annotated[str, StringConstraints(min_length=1, max_length=64)]] = Field(
        min_length=1, max_length=100
    )


class Fitting(Why):
    """Which of the poison messages that were read: all that each given field fits. Times of the last failure, in ISO 8601."""

    kind: Search = ""
    q: Search = ""
    error: Search = ""
    handler: Search = ""
    since: Search = ""
    until: Search = ""


class Closing(_Body):
    """Why a gate closes: required, and recorded in the audit log."""

    reason: Annotated[Text, StringConstraints(min_length=1)]


class NewQueue(Why):
    """A queue to make."""

    name: _Name


class NewMessage(Why):
    """One item to put: any JSON, 64 KiB at most."""

    item: Any


class NewRule(Why):
    """The scaling rule to save for a queue."""

    rule: described(Steps) | described(TargetLatency)  # type: ignore[valid-type]


class NewPolicy(Why):
    """The policy to save for a pool of workers."""

    policy: described(ScalingPolicy)  # type: ignore[valid-type]


_Price = Annotated[float, Field(ge=0, le=1000)]


class PriceTable(_Body):
    """Dollars for 10,000 requests, by kind, with date and source. Omitted fields use defaults."""

    queue: _Price = DEFAULT_PRICES.queue
    blob_write: _Price = DEFAULT_PRICES.blob_write
    blob_read: _Price = DEFAULT_PRICES.blob_read
    blob_list: _Price = DEFAULT_PRICES.blob_list
    blob_other: _Price = DEFAULT_PRICES.blob_other
    table: _Price = DEFAULT_PRICES.table
    instance_hour: _Price = DEFAULT_PRICES.instance_hour
    as_of: Annotated[str, StringConstraints(pattern=_STORABLE, max_length=40)] = DEFAULT_PRICES.as_of
    source: Annotated[str, StringConstraints(pattern=_STORABLE, max_length=200)] = DEFAULT_PRICES.source


class NewPrices(Why):
    """The prices to save, and the daily budget in dollars (null: no budget)."""

    prices: PriceTable
    per_day: Annotated[float, Field(gt=0, le=1_000_000)] | None = None


_Patterns = Annotated[str, StringConstraints(pattern=_PATTERNS, min_length=1, max_length=200)]


class Claims(_Body):
    """What the workers of a token may claim; patterns are names with `*` and `?`, several with a space between.

    As `dashboard.core.permissions.Allowance`, which checks it again.
    """

    workers: _Patterns = NEW.workers
    gates: _Patterns = NEW.gates
    queues: _Patterns = NEW.queues
    connections: Annotated[int, Field(ge=1, le=20_000)] = NEW.connections
    instances: Annotated[int, Field(ge=1, le=50_000)] = NEW.instances
    per_second: Annotated[int, Field(ge=2, le=50)] = NEW.per_second


class NewToken(Why):
    """A token to make: a service's or a fleet's, or with `own` one's own, capped by what oneself may."""

    name: Annotated[str, StringConstraints(pattern=_TITLE, min_length=1, max_length=100)]
    scope: Literal["worker", "read", "act", "kiosk"]
    days: Annotated[float, Field(gt=0, le=3660)] | None = None
    own: bool = False
    role: Literal["", "viewer", "operator", "admin"] = ""
    team: Annotated[str, StringConstraints(pattern=_STORABLE, max_length=150)] = ""
    allowance: Claims | None = None


class AlertRuleBody(Why):
    """When an alert fires, for each name that `names` covers; `figure` is one that the docs list."""

    figure: Annotated[str, StringConstraints(pattern=_FIGURE, min_length=1, max_length=40)]
    value: float
    below: bool = False
    for_seconds: Annotated[float, Field(ge=0, le=604_800)] = 0.0
    clear_seconds: Annotated[float, Field(ge=0, le=604_800)] = 60.0
    names: _Patterns = "*"
    level: Literal["warning", "critical"] = "warning"
    enabled: bool = True
    channels: list[_Name] = Field(default=[], max_length=50)


class NewChannel(Why):
    """Where alerts are sent: e-mail addresses, the URL of a webhook, Slack or Teams, or the integration key of PagerDuty."""

    kind: Literal["email", "webhook", "slack", "teams", "pagerduty"]
    address: Annotated[str, StringConstraints(pattern=_TITLE, min_length=1, max_length=1000)]


class NewSilence(Why):
    """For how long nothing is sent, for which names."""

    seconds: Annotated[float, Field(ge=60, le=30 * 86_400)]
    names: _Patterns = "*"
