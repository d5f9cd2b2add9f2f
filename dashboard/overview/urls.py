"""Addresses."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.core import exports
from dashboard.live import graphs
from dashboard.overview import help, search, views, wallboard

urlpatterns = [
    path("", views.overview, name="overview"),
    path("search/", search.search, name="search"),
    path("help/", help.help_page, name="help"),
    path("tv", wallboard.tv, name="tv"),
    re_path(r"^tables/(?P<name>[a-z]+)\.(?P<form>csv|json)$", exports.table, name="table"),
    path("history/", graphs.history, name="history"),
]
