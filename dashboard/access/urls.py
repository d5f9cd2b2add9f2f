"""Addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.access import views

urlpatterns = [
    path("access/", views.access, name="access"),
    path("access/tokens", views.create_token, name="token-create"),
    path("access/tokens/<int:token>/revoke", views.revoke_token, name="token-revoke"),
    path("access/people", views.add_person, name="person-add"),
    path("access/people/role", views.set_role, name="person-role"),
    path("access/people/disable", views.disable, name="person-disable"),
    path("access/people/enable", views.enable, name="person-enable"),
    path("access/people/password", views.reset_password, name="person-reset-password"),
    path("access/people/second-factor", views.reset_second_factor, name="person-reset-factor"),
    path("access/sessions", views.end_sessions, name="sessions-end"),
    path("access/sessions/<int:session>/end", views.end_session, name="session-end"),
    path("access/rules", views.add_rule, name="team-rule"),
    path("access/rules/<int:rule>/remove", views.remove_rule, name="team-rule-remove"),
    path("access/members", views.set_member, name="team-member"),
]
