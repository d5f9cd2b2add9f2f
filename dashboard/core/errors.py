"""Why an act was not done, in words for whoever asked for it."""

from __future__ import annotations


class ActionFailed(Exception):
    """The act was not done, or it is not known whether it was; the text says which and what to do."""


class Denied(ActionFailed):
    """The actor may not do this."""
