"""Alerts: what fires, the rules, and where alerts are sent."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.alerts import actions, queries
from dashboard.alerts.actions import RuleForm
from dashboard.core.alert_channels import KINDS
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.permissions import Actor
from dashboard.live.alert_figures import FIGURES, LEVELS
from dashboard.models import AlertChannel
from dashboard.pages.views import act, actor_of, confirm, is_confirmed, requires, show, text


@require_safe
@requires("page.view")
def alerts(request: HttpRequest) -> HttpResponse:
    return _page(request)


def _page(request: HttpRequest, *, secret: str = "", channel: str = "", status: int = 200) -> HttpResponse:
    queries.firing()
    return show(
        request,
        "alerts/alerts.html",
        "alerts",
        status=status,
        rules=queries.rules(),
        channels=queries.channels(),
        silences=queries.silences(),
        past=queries.history(),
        failures=queries.failures(),
        kinds=list(KINDS),
        secret=secret,
        saved_channel=channel,
    )


@require_http_methods(["GET", "HEAD", "POST"])
@requires("alert.rule")
def rule(request: HttpRequest, rule: str) -> HttpResponse:
    """A rule's form; with `preview` how often it would have fired, else it is saved. A new one has the name "-"."""
    if request.method != "POST":
        if rule == "-":
            return _rule_page(request, "", RuleForm("queue.depth", FIGURES["queue.depth"].value))
        form = queries.rule_form(rule)
        if form is None:
            raise Http404(rule)
        return _rule_page(request, rule, form, preview=True)
    known, form = "" if rule == "-" else rule, _form(request)
    name = known or text(request, "name", 48)
    try:
        actions.check_rule(form)
        if "preview" in request.POST:
            return _rule_page(request, known, form, preview=True, name=name)
        actions.save_rule(actor_of(request), name, form, reason=text(request, "reason"))
    except ActionFailed as error:
        messages.error(request, str(error))
        status = 403 if isinstance(error, Denied) else 422
        return _rule_page(request, known, form, name=name, status=status)
    messages.success(request, f"Rule {name} saved.")
    return redirect("alerts")


def _form(request: HttpRequest) -> RuleForm:
    return RuleForm(
        figure=text(request, "figure"),
        value=_number(request, "value"),
        below=text(request, "comparison") == "below",
        for_seconds=_number(request, "for_seconds"),
        clear_seconds=_number(request, "clear_seconds"),
        names=text(request, "names") or "*",
        level=text(request, "level"),
        enabled="enabled" in request.POST,
        channels=tuple(request.POST.getlist("channel"))[: actions.MOST_CHANNELS],
    )


def _number(request: HttpRequest, name: str) -> float:
    written = text(request, name, 24).replace(",", "").replace(" ", "")
    try:
        return float(written or 0)
    except ValueError:
        return float("nan")  # refused with the bounds


def _rule_page(
    request: HttpRequest,
    rule: str,
    form: RuleForm,
    *,
    preview: bool = False,
    name: str = "",
    status: int = 200,
) -> HttpResponse:
    return show(
        request,
        "alerts/rule.html",
        "rule",
        live=False,
        status=status,
        rule=rule,
        name=rule or name,
        form=form,
        figures=FIGURES,
        about=FIGURES.get(form.figure),
        levels=list(LEVELS),
        channels=list(AlertChannel.objects.order_by("name").values_list("name", flat=True)),
        previewed=preview,
        preview=queries.preview(form) if preview else None,
    )


@require_http_methods(["GET", "HEAD", "POST"])
@requires("alert.rule")
def delete_rule(request: HttpRequest, rule: str) -> HttpResponse:
    """Asks for the typed name, then deletes the rule."""
    back = reverse("alerts")
    if is_confirmed(request, rule):
        return act(
            request, lambda actor: actions.delete_rule(actor, rule), f"Rule {rule} deleted.", back=back
        )
    if queries.rule_form(rule) is None:
        raise Http404(rule)
    return confirm(
        request,
        rule,
        title=f"Delete the rule {rule}?",
        verb="Delete",
        consequences=("Its alerts are resolved.", "Nothing is sent for its condition from now on."),
        back=back,
    )


@require_POST
@requires("alert.silence")
def silence(request: HttpRequest, rule: str) -> HttpResponse:
    """Send nothing for `hours`, for the names that a pattern covers."""
    names = text(request, "names") or "*"
    return act(
        request,
        lambda actor: actions.silence(
            actor, rule, _number(request, "hours") * 3600.0, names=names, reason=text(request, "reason")
        ),
        f"{rule} is silenced.",
        back=reverse("alerts"),
        page="alerts",
    )


@require_POST
@requires("alert.silence")
def end_silence(request: HttpRequest, silence: int) -> HttpResponse:
    return act(
        request, lambda actor: actions.end_silence(actor, silence), "Silence ended.", back=reverse("alerts")
    )


@require_POST
@requires("alert.acknowledge")
def acknowledge(request: HttpRequest, alert: int) -> HttpResponse:
    def acknowledged(actor: Actor) -> None:
        actions.acknowledge(actor, alert)
        queries.firing()

    return act(
        request,
        acknowledged,
        "Acknowledged. Nothing more is sent until it is resolved.",
        back=reverse("alerts"),
        page="alerts",
    )


@require_POST
@never_cache
@requires("alert.channel")
def save_channel(request: HttpRequest) -> HttpResponse:
    """Create or replace a channel. The secret that its messages are signed with is in this answer alone."""
    name, kind = text(request, "name", 48), text(request, "kind")
    try:
        secret = actions.save_channel(actor_of(request), name, kind, text(request, "address", 1000))
    except ActionFailed as error:
        messages.error(request, str(error))
        return _page(request, status=403 if isinstance(error, Denied) else 422)
    messages.success(request, f"Channel {name} saved. Send a test.")
    answer = _page(request, secret=secret, channel=name)
    answer["Cache-Control"] = "no-store"
    return answer


@require_http_methods(["GET", "HEAD", "POST"])
@requires("alert.channel")
def delete_channel(request: HttpRequest, channel: str) -> HttpResponse:
    """Asks for the typed name, then deletes the channel."""
    back = reverse("alerts")
    if is_confirmed(request, channel):
        return act(
            request,
            lambda actor: actions.delete_channel(actor, channel),
            f"Channel {channel} deleted.",
            back=back,
        )
    if not AlertChannel.objects.filter(name=channel).exists():
        raise Http404(channel)
    return confirm(
        request,
        channel,
        title=f"Delete the channel {channel}?",
        verb="Delete",
        consequences=("Rules send nothing to it any more.", "What was not sent yet is dropped."),
        back=back,
    )


@require_POST
@requires("alert.test")
def try_channel(request: HttpRequest, channel: str) -> HttpResponse:
    return act(
        request,
        lambda actor: actions.try_channel(actor, channel),
        f"A test is sent to {channel}. Whether it was taken is shown in the list of channels.",
        back=reverse("alerts"),
    )
