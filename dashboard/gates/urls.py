"""Addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.gates import views

urlpatterns = [
    path("gates/", views.gates, name="gates"),
    path("gates/<str:name>/unleash", views.unleash, name="gate-unleash"),
    path("gates/<str:name>/opening", views.opening, name="gate-opening"),
    path("gates/<str:name>/leash", views.leash, name="gate-leash"),
    path("several/gates/leash", views.leash_all, name="gates-leash"),
    path("several/gates/undo", views.undo_leash, name="gates-undo"),
    path("several/gates/unleash", views.unleash_selected, name="gates-unleash"),
]
