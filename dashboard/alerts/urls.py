"""Addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.alerts import views

urlpatterns = [
    path("alerts/", views.alerts, name="alerts"),
    path("alerts/new", views.rule, {"rule": "-"}, name="alert-rule-new"),
    path("alerts/rules/<str:rule>/", views.rule, name="alert-rule"),
    path("alerts/rules/<str:rule>/delete", views.delete_rule, name="alert-rule-delete"),
    path("alerts/rules/<str:rule>/silence", views.silence, name="alert-silence"),
    path("alerts/silences/<int:silence>/end", views.end_silence, name="alert-silence-end"),
    path("alerts/<int:alert>/acknowledge", views.acknowledge, name="alert-acknowledge"),
    path("alerts/channels", views.save_channel, name="alert-channel"),
    path("alerts/channels/<str:channel>/delete", views.delete_channel, name="alert-channel-delete"),
    path("alerts/channels/<str:channel>/test", views.try_channel, name="alert-channel-test"),
]
