"""The Throughput page as the registry knows it."""

from __future__ import annotations

from dashboard.core.pages import Page

PAGES = (Page("throughput", part_of="queues"),)
