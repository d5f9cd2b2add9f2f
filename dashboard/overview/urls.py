"""Addresses."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.overview import graphs, saved_views, search, views
from dashboard.pages import tables as exports

urlpatterns = [
    path("", views.overview, name="overview"),
    path("search/", search.search, name="search"),
    path("views/", saved_views.saved_views, name="saved-views"),
    path("help/", views.help_page, name="help"),
    re_path(r"^tv/?$", views.tv, name="tv"),
    re_path(r"^tv/kiosk/?$", views.kiosk, name="kiosk"),
    re_path(r"^tables/(?P<name>[a-z]+)\.(?P<form>csv|json)$", exports.table, name="table"),
    path("history/", graphs.history, name="history"),
]
