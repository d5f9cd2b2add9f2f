"""The Access page as the registry knows it."""

from __future__ import annotations

from dashboard.core.pages import Page

PAGES = (Page("access", title="Access", icon="tokens"),)
