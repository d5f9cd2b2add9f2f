"""Saved views: addresses of pages, with their filter and order, that a person gave names. Each person has their own."""

from __future__ import annotations

from typing import cast
from urllib.parse import urlsplit

from django.contrib import messages
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import Resolver404, resolve
from django.views.decorators.http import require_http_methods

from dashboard.core.pages import registry
from dashboard.models import SavedView
from dashboard.pages.views import requires, show, text, whole_number

MOST = 50
MOST_CHARACTERS = 60
# Pages besides those of the navigation that have a filter, an order or a time of their own.
ALSO = frozenset({"queue", "queue-poison", "throughput", "worker", "search", "tv"})


def views_of(user: AbstractBaseUser | AnonymousUser) -> QuerySet[SavedView]:
    """The saved views of this person, by name."""
    return SavedView.objects.filter(user=cast(User, user)).order_by("name")


@require_http_methods(["GET", "HEAD", "POST"])
@requires("page.view")
def saved_views(request: HttpRequest) -> HttpResponse:
    """The saved views, and a form for the page at the address `at`. A post saves one (the same name replaces), or removes
    the one whose number is `remove`."""
    if request.method == "POST":
        number = whole_number(text(request, "remove"))
        if number is None:
            _save(request)
        else:
            _remove(request, number)
        return redirect("saved-views")
    at = request.GET.get("at", "")
    return show(
        request,
        "overview/saved_views.html",
        "other",
        live=False,
        views=views_of(request.user),
        at=at if _is_page(at) else "",
        most=MOST_CHARACTERS,
    )


def _remove(request: HttpRequest, number: int) -> None:
    removed, _ = views_of(request.user).filter(pk=number).delete()
    if removed:
        messages.success(request, "View removed.")


def _save(request: HttpRequest) -> None:
    name = " ".join(text(request, "name", MOST_CHARACTERS).split())
    address = text(request, "address", 2000)
    others = views_of(request.user).exclude(name=name)
    if not name:
        messages.error(request, "Give the view a name.")
    elif not _is_page(address):
        messages.error(request, "This address is not a page of this dashboard: nothing was saved.")
    elif others.count() >= MOST:
        messages.error(request, f"You have {MOST} saved views: remove one first.")
    else:
        SavedView.objects.update_or_create(
            user=cast(User, request.user), name=name, defaults={"address": address}
        )
        messages.success(request, f"View {name} saved.")


def _is_page(address: str) -> bool:
    """Whether an address leads to a page of this dashboard, and nowhere else."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc or "\\" in address or not parts.path.startswith("/"):
        return False
    try:
        found = resolve(parts.path)
    except Resolver404:
        return False
    return found.url_name in ALSO | {page.name for page in registry().navigation}
