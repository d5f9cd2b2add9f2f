"""The words that the scripts of the pages write themselves. What they are in English is their key."""

from __future__ import annotations

from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

WORDS = (
    _("as of {age}"),
    _("Auto"),
    _("broke the lease:"),
    _("cleared:"),
    _("Connecting"),
    _("Dark"),
    _("deleted:"),
    _("drained:"),
    _("in"),
    _("leashed:"),
    _("Light"),
    _("Live"),
    _("Local"),
    _("new policy:"),
    _("new rule:"),
    _(
        "No answer from the dashboard. It is not known whether the action was carried out; look at the audit before you try again."
    ),
    _("No samples yet"),
    _("Not connected"),
    _("not read yet"),
    _("out"),
    _("Paused"),
    _("Put this message away"),
    _("requeued:"),
    _("resumed:"),
    _("stepped down:"),
    _("stopped:"),
    _("The dashboard answered {code}. Look at the audit before you try again."),
    _("Theme: {theme}. Press to change."),
    _("Time"),
    _("Times: UTC. Press to change."),
    _("Times: your local time. Press to change."),
    _("Trying again in {seconds} s."),
    _("Trying …"),
    _("unleashed:"),
    _("updated {age}"),
    _("What operators did"),
    _("What you see is old; workers go on without it."),
    _("You may not do this. Nothing was changed; the attempt is in the audit."),
    _("Tick some to act on all of them."),
    _("{d} d ago"),
    _("{h} h {min} min ago"),
    _("{min} min ago"),
    _("{n} ticked:"),
    _("{s} s ago"),
    _("in {s} s"),
)


def translated() -> dict[str, str]:
    """Those that are something else in the language that is active."""
    pairs = ((word, gettext(word)) for word in WORDS)
    return {word: told for word, told in pairs if told != word}
