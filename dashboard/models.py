"""What the dashboard keeps itself: the audit, worker tokens, history. Coordination state is in the storage account."""

from __future__ import annotations

from typing import Self

from django.conf import settings
from django.db import models
from django.db.models.expressions import RawSQL


class AuditOutcome(models.TextChoices):
    INTENT = "intent"
    DONE = "done"
    FAILED = "failed"
    DENIED = "denied"
    UNKNOWN = "unknown"


class AuditRow(models.Model):
    """One line of the audit: append-only, chained by hash. Written by `dashboard.core.audit` alone.

    An act has two rows: its intent, and its outcome, which names the intent's `id` in `intent_id`. Ids have no gaps.
    """

    id = models.BigIntegerField(primary_key=True)
    at = models.FloatField(db_index=True)
    actor = models.CharField(max_length=150)
    address = models.CharField(max_length=64, blank=True)
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=200, blank=True)
    before = models.TextField(blank=True)
    after = models.TextField(blank=True)
    reason = models.TextField(blank=True)
    outcome = models.CharField(max_length=8, choices=AuditOutcome)
    request_id = models.CharField(max_length=64, blank=True)
    intent_id = models.BigIntegerField(null=True, unique=True)
    closed = models.BooleanField(default=False)  # for versions before; not in the digest, and not read
    previous = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)

    class Meta:
        indexes = [
            models.Index(fields=["action", "-id"], name="audit_action"),
            models.Index(fields=["target", "-id"], name="audit_target"),
            models.Index(fields=["actor", "-id"], name="audit_actor"),
        ]

    def __str__(self) -> str:
        return f"#{self.pk} {self.actor} {self.action} {self.target}: {self.outcome}"


class AuditHead(models.Model):
    """The end of the chain; its one row is what writers of the audit queue up for."""

    last_id = models.BigIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True)

    def __str__(self) -> str:
        return f"#{self.last_id}"


class Scope(models.TextChoices):
    WORKER = "worker", "workers: connect to the hub"
    READ = "read", "programs: read the API and the metrics"
    ACT = "act", "programs: read and act through the API"
    KIOSK = "kiosk", "screens: show the wallboard"


class WorkerToken(models.Model):
    """What a worker or program shows to connect. Only the digest is kept; the token is shown once, when made.

    `allowance` is what a worker's token may claim, as `dashboard.core.permissions` writes it; "" for the usual.
    A personal token has an `owner`: it acts as that user, with at most `role` and at most what they may at that
    moment. A service token has none: it acts as itself, with `role`, as a member of `team`. Tokens of workers and of screens have no role.
    """

    name = models.CharField(max_length=100)
    scope = models.CharField(max_length=8, choices=Scope, default=Scope.WORKER)
    start = models.CharField(max_length=12)
    digest = models.CharField(max_length=64, unique=True)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens"
    )
    role = models.CharField(max_length=8, blank=True)
    team = models.ForeignKey("auth.Group", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    allowance = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.start}…)"


class TeamRule(models.Model):
    """Members of a team have `role` on the gates or queues whose names match; nobody else but administrators acts there."""

    team = models.ForeignKey("auth.Group", on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=8, choices=[("gate", "gates"), ("queue", "queues")])
    pattern = models.CharField(max_length=80)
    role = models.CharField(max_length=8)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "kind", "pattern"], name="team_rule_once")]

    def __str__(self) -> str:
        return f"{self.team.name}: {self.role} of {self.kind} {self.pattern}"


class SignInTries(models.Model):
    """Failed attempts to sign in, by a digest of name and address. Moments are seconds since 1970."""

    key = models.CharField(max_length=64, unique=True)
    tries = models.PositiveIntegerField(default=0)
    last_at = models.FloatField(db_index=True)
    locked_until = models.FloatField(default=0.0)

    def __str__(self) -> str:
        return f"{self.tries} tries"


class ApiAnswer(models.Model):
    """The answer to a write that came with an Idempotency-Key; status 0 while it is under way. Kept for a day.

    `key` is a digest of caller and key, `content` of the request.
    """

    key = models.CharField(max_length=64, unique=True)
    content = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(default=0)
    kind = models.CharField(max_length=64, blank=True)
    etag = models.CharField(max_length=64, blank=True)
    body = models.TextField(blank=True)
    at = models.FloatField(db_index=True)

    def __str__(self) -> str:
        return f"{self.status} for {self.key[:8]}…"


class WebhookMark(models.Model):
    """How far an address has been sent the audit; `address` is a digest: it may hold a secret."""

    address = models.CharField(max_length=64, unique=True)
    last_id = models.BigIntegerField()
    tries = models.PositiveSmallIntegerField(default=0)
    next_at = models.FloatField(default=0.0)

    def __str__(self) -> str:
        return f"{self.address[:8]}… up to #{self.last_id}"


class GatePeak(models.Model):
    """The highest epoch that was ever seen of a gate, so that a restored one is noticed after a restart, too.

    `source` is the account and prefix it was read from, `back_since` when storage was found to have a lower one.
    """

    source = models.CharField(max_length=300)
    name = models.CharField(max_length=200)
    epoch = models.BigIntegerField(default=0)
    back_since = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "name"], name="gate_peak_once")]

    def __str__(self) -> str:
        return f"{self.name} at {self.epoch}"


class PastWorker(models.Model):
    """A worker process that is or was there: its last report (JSON), and how it ended ("" is not known to have ended)."""

    source = models.CharField(max_length=300)
    instance = models.CharField(max_length=200)
    name = models.CharField(max_length=200)
    token = models.CharField(max_length=200, blank=True)
    ended = models.CharField(max_length=10, blank=True)
    seen_at = models.FloatField()
    report = models.TextField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "instance"], name="past_worker_once")]
        indexes = [models.Index(fields=["source", "-seen_at"], name="past_worker_newest")]

    def __str__(self) -> str:
        return self.name


class PastRelease(models.Model):
    """The newest release of a gate (JSON), as far as it has come."""

    source = models.CharField(max_length=300)
    gate = models.CharField(max_length=200)
    epoch = models.BigIntegerField(default=0)
    at = models.FloatField()
    news = models.TextField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "gate"], name="past_release_once")]

    def __str__(self) -> str:
        return f"{self.gate} at {self.epoch}"


class PoisonMessage(models.Model):
    """A message of a poison queue as somebody read it, for an hour; "" as its receipt says that it was only peeked at.

    Rows of one `kind` failed alike. The messages themselves are in the storage account.
    """

    source = models.CharField(max_length=300)
    queue = models.CharField(max_length=63)
    message_id = models.CharField(max_length=100)
    receipt = models.CharField(max_length=200, blank=True)
    kind = models.CharField(max_length=16)
    error = models.CharField(max_length=200, blank=True)
    reason = models.CharField(max_length=200, blank=True)
    handler = models.CharField(max_length=200, blank=True)
    worker = models.CharField(max_length=200, blank=True)
    attempts = models.IntegerField(default=0)
    size = models.IntegerField(default=0)
    first_at = models.FloatField()
    last_at = models.FloatField()
    read_at = models.FloatField()
    text = models.TextField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["source", "queue", "message_id"], name="poison_message_once")
        ]
        # The rows are long. The first index groups them, the second orders them, without reading one.
        indexes = [
            models.Index(
                fields=[
                    "source",
                    "queue",
                    "kind",
                    "error",
                    "reason",
                    "handler",
                    "last_at",
                    "read_at",
                    "receipt",
                ],
                name="poison_message_kinds",
            ),
            models.Index(
                fields=["source", "queue", "-last_at", "id", "read_at"], name="poison_message_newest"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.queue}: {self.message_id}"


class BulkAct(models.Model):
    """An act on many poison messages that goes on in the background, and how far it has come. Kept for 30 days."""

    source = models.CharField(max_length=300)
    queue = models.CharField(max_length=63)
    verb = models.CharField(max_length=10)
    what = models.CharField(max_length=300)
    only = models.TextField(
        blank=True, default=""
    )  # the filter (JSON), and the last row that was there: who goes on
    last_row = models.BigIntegerField(default=0)  # with the act does those that are left of them
    runner = models.CharField(max_length=16, blank=True, default="")
    actor = models.CharField(max_length=150)
    total = models.IntegerField(null=True)
    done = models.IntegerField(default=0)
    left = models.IntegerField(default=0)
    abort = models.CharField(max_length=150, blank=True)
    problem = models.TextField(blank=True)
    outcome = models.CharField(max_length=16, default="running")
    started_at = models.FloatField()
    seen_at = models.FloatField()

    class Meta:
        indexes = [models.Index(fields=["source", "queue", "-started_at"], name="bulk_act_newest")]
        constraints = [
            models.UniqueConstraint(
                fields=["source", "queue"], condition=models.Q(outcome="running"), name="bulk_act_alone"
            )
        ]

    def __str__(self) -> str:
        return f"{self.verb} {self.queue}: {self.outcome}"


class SavedView(models.Model):
    """An address of the pages, with its filter and order, that a person gave a name."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=60)
    address = models.CharField(max_length=2000)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="saved_view_once")]

    def __str__(self) -> str:
        return self.name


class Pricing(models.Model):
    """The prices (JSON) and the daily budget that operators saved; no row: those of the environment."""

    prices = models.TextField()
    per_day = models.FloatField(null=True)
    by = models.CharField(max_length=150)
    at = models.FloatField()

    def __str__(self) -> str:
        return f"by {self.by}"


class Series(models.Model):
    """The name of a measured thing, such as ``depth:orders-in``."""

    name = models.CharField(max_length=120, unique=True)

    def __str__(self) -> str:
        return self.name


class Chunk(models.Model):
    """Consecutive samples of a series, packed: `values` are little-endian doubles, NaN where none was taken.

    `lows` and `highs` are the least and the greatest of the samples that a value is the mean of; None where each value is
    one sample, and in chunks of former releases.
    """

    series = models.ForeignKey(Series, on_delete=models.CASCADE, related_name="chunks")
    resolution = models.PositiveSmallIntegerField()
    start = models.BigIntegerField()
    values = models.BinaryField()
    lows = models.BinaryField(null=True)
    highs = models.BinaryField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["series", "resolution", "start"], name="chunk_once")]
        indexes = [models.Index(fields=["resolution", "start"], name="chunk_age")]

    def __str__(self) -> str:
        return f"{self.series_id} from {self.start} every {self.resolution} s"


class LedgerBook(models.Model):
    """How far the index of a sequence's ledger has come. The ledger is in the storage account; this can be made again.

    `source` is the account and prefix it was read from, `next` the first number that is not indexed yet, `counter` the
    next free number, `swept` from where unsettled rows are looked at again, `read_at` when storage was last read.
    """

    name = models.CharField(max_length=200, unique=True)
    source = models.CharField(max_length=300, blank=True)
    start = models.BigIntegerField(default=1)
    next = models.BigIntegerField(default=1)
    counter = models.BigIntegerField(default=1)
    swept = models.BigIntegerField(default=0)
    read_at = models.FloatField(default=0.0)

    def __str__(self) -> str:
        return f"{self.name} up to {self.next - 1}"


class LedgerOwner(models.Model):
    """One start of a process that was granted numbers."""

    name = models.CharField(max_length=200)
    host = models.CharField(max_length=255, blank=True)
    pid = models.BigIntegerField(default=0)
    started_at = models.BigIntegerField(default=0)
    software = models.CharField(max_length=100, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["name", "host", "pid", "started_at", "software"], name="ledger_owner_once"
            )
        ]

    def __str__(self) -> str:
        return self.name


UNSETTLED = ("granted", "free", "missing")


class LedgerRows(models.QuerySet["LedgerRow"]):
    """Rows of the index."""

    def unsettled(self) -> Self:
        """Those that may still change. In words of its own: with parameters SQLite would not use the index of these rows."""
        states = ", ".join(f"'{state}'" for state in UNSETTLED)
        whether = RawSQL(f'"dashboard_ledgerrow"."state" IN ({states})', (), models.BooleanField())
        return self.filter(whether)


class LedgerRow(models.Model):
    """A grant as the ledger had it, or a hole: "unattributed" (others moved the counter) or "missing" (unexplained).

    `turn` counts how often the end of a range was returned and granted again, as in the ledger's row keys.
    """

    book = models.ForeignKey(LedgerBook, on_delete=models.CASCADE, related_name="rows", db_index=False)
    first = models.BigIntegerField()
    last = models.BigIntegerField()
    turn = models.PositiveIntegerField(default=0)
    step = models.PositiveIntegerField(default=1)
    owner = models.ForeignKey(LedgerOwner, null=True, on_delete=models.PROTECT, db_index=False)
    granted_at = models.FloatField(null=True)
    state = models.CharField(max_length=12)
    issued_through = models.BigIntegerField(null=True)

    objects = LedgerRows.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["book", "last", "turn"], name="ledger_row_once")]
        indexes = [
            models.Index(fields=["book", "owner", "-last"], name="ledger_by_owner"),
            models.Index(fields=["book", "granted_at"], name="ledger_by_time"),
            models.Index(
                fields=["book", "last"], name="ledger_unsettled", condition=models.Q(state__in=UNSETTLED)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.first}…{self.last} {self.state}"


class LastIssued(models.Model):
    """Up to which number a worker process that was lost had issued of a range, as it said in its last heartbeat."""

    sequence = models.CharField(max_length=200)
    first = models.BigIntegerField()
    owner = models.CharField(max_length=200)
    pid = models.BigIntegerField()
    last_issued = models.BigIntegerField()
    at = models.FloatField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["sequence", "first", "owner", "pid"], name="last_issued_once")
        ]

    def __str__(self) -> str:
        return f"{self.sequence} up to {self.last_issued}"


class AlertChannel(models.Model):
    """Where alerts are sent. Address and secret are encrypted with a key made of KENNEL_SECRET_KEY; `shown` may be seen."""

    name = models.CharField(max_length=48, unique=True)
    kind = models.CharField(max_length=10)
    address = models.TextField()
    secret = models.TextField(blank=True)
    shown = models.CharField(max_length=200)
    by = models.CharField(max_length=150)
    at = models.FloatField()

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} to {self.shown}"


class AlertRule(models.Model):
    """When an alert fires: a figure above or below a value for some seconds, for each name that one of the patterns covers."""

    name = models.CharField(max_length=48, unique=True)
    figure = models.CharField(max_length=40)
    below = models.BooleanField(default=False)
    value = models.FloatField(default=0.0)
    for_seconds = models.FloatField(default=0.0)
    clear_seconds = models.FloatField(default=60.0)
    names = models.CharField(max_length=200, default="*")
    level = models.CharField(max_length=8, default="warning")
    enabled = models.BooleanField(default=True)
    channels = models.ManyToManyField(AlertChannel, related_name="rules", blank=True)
    by = models.CharField(max_length=150)
    at = models.FloatField()

    def __str__(self) -> str:
        return f"{self.name}: {self.figure}"


class AlertSilence(models.Model):
    """Until a moment nothing is sent for the subjects of a rule that a pattern covers."""

    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="silences")
    names = models.CharField(max_length=200, default="*")
    until = models.FloatField(db_index=True)
    by = models.CharField(max_length=150)
    reason = models.TextField(blank=True)

    def __str__(self) -> str:
        return f"{self.names} until {self.until}"


class Alert(models.Model):
    """One time that the condition of a rule held for a subject: pending, then firing (`fired_at`), then resolved.

    Of one rule and subject at most one is not resolved, whichever process found it. `clear_since` is since when the
    condition holds no more, `notified` whether the channels get it.
    """

    rule = models.ForeignKey(AlertRule, null=True, on_delete=models.SET_NULL, related_name="alerts")
    rule_name = models.CharField(max_length=48)
    subject = models.CharField(max_length=200, blank=True)
    what = models.TextField()
    level = models.CharField(max_length=8)
    url = models.CharField(max_length=300, blank=True)
    since = models.FloatField()
    seen_at = models.FloatField()
    fired_at = models.FloatField(null=True)
    clear_since = models.FloatField(null=True)
    resolved_at = models.FloatField(null=True, db_index=True)
    acknowledged_by = models.CharField(max_length=150, blank=True)
    acknowledged_at = models.FloatField(null=True)
    notified = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "subject"], condition=models.Q(resolved_at=None), name="alert_open_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.rule_name} {self.subject}"


class AlertDelivery(models.Model):
    """One message to one channel. `key` is unique, and sent along: who gets it twice knows by it.

    `state` is "waiting", "sending" (by a process that has it until `claimed_until`), "sent" or "failed".
    """

    key = models.CharField(max_length=80, unique=True)
    alert = models.ForeignKey(Alert, null=True, on_delete=models.CASCADE, related_name="deliveries")
    channel = models.ForeignKey(AlertChannel, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=8)
    state = models.CharField(max_length=8, default="waiting")
    tries = models.PositiveSmallIntegerField(default=0)
    next_at = models.FloatField(default=0.0)
    claimed_until = models.FloatField(default=0.0)
    problem = models.CharField(max_length=200, blank=True)
    at = models.FloatField()

    class Meta:
        indexes = [models.Index(fields=["state", "next_at"], name="alert_delivery_due")]

    def __str__(self) -> str:
        return f"{self.key}: {self.state}"


class Tally(models.Model):
    """What handlers did within a minute, an hour or a day, by listener: `durations` and `waits` (JSON) count items by bucket of time."""

    source = models.CharField(max_length=300)
    queue = models.CharField(max_length=200)
    handler = models.CharField(max_length=200, blank=True)
    seconds = models.PositiveIntegerField()
    start = models.BigIntegerField()
    done = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    retried = models.BigIntegerField(default=0)
    durations = models.TextField(default="{}")
    waits = models.TextField(default="{}")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["source", "seconds", "start", "queue", "handler"], name="tally_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.queue} from {self.start} for {self.seconds} s"


class TallyMark(models.Model):
    """How much of what a listener of a worker process reported is in the tallies (JSON)."""

    source = models.CharField(max_length=300)
    instance = models.CharField(max_length=200)
    queue = models.CharField(max_length=200)
    handler = models.CharField(max_length=200, blank=True)
    counted = models.TextField()
    at = models.FloatField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["source", "instance", "queue", "handler"], name="tally_mark_once")
        ]

    def __str__(self) -> str:
        return f"{self.queue} of {self.instance}"
