"""The Audit page as the registry knows it."""

from __future__ import annotations

from dashboard.core.pages import Page

PAGES = (Page("audit", title="Audit", key="a"),)
