"""What HTTP asks of every address of the API: HEAD where GET is answered, and a problem for other methods."""

from __future__ import annotations

import pytest
from django.core.cache import caches
from django.test import Client

from dashboard.api.v1.api import api
from dashboard.core import tokens
from dashboard.models import Scope

pytestmark = pytest.mark.django_db

PATHS = {
    path.replace("{", "").replace("}", ""): set(methods)
    for path, methods in api.get_openapi_schema(path_prefix="/api/v1/")["paths"].items()
}
READS = [path for path, methods in PATHS.items() if "get" in methods]
# Answered from memory or the database alone.
KNOWN = ["fleet", "attention", "gates", "queues", "workers", "audit", "tokens"]


@pytest.fixture
def reader() -> dict[str, str]:
    caches["default"].clear()
    return {"Authorization": f"Bearer {tokens.create('reader', scope=Scope.READ, role='viewer')}"}


@pytest.mark.parametrize("name", KNOWN)
def test_head_is_answered_as_get_without_the_body(client: Client, reader: dict[str, str], name: str) -> None:
    path = f"/api/v1/{name}"
    got, head = client.get(path, headers=reader), client.head(path, headers=reader)
    assert (got.status_code, head.status_code, head.content) == (200, 200, b""), got.content
    assert head["Content-Type"] == got["Content-Type"]
    assert int(head["Content-Length"]) > 0
    if "ETag" in got:
        known = {**reader, "If-None-Match": head["ETag"]}
        assert (head["ETag"], client.head(path, headers=known).status_code) == (got["ETag"], 304)


def test_head_is_a_door_like_get_everywhere(client: Client) -> None:
    caches["default"].clear()
    for path in READS:
        assert client.head(path).status_code == client.get(path).status_code == 401, path


def test_any_other_method_is_a_problem_that_names_those_which_are_answered(client: Client) -> None:
    for path, methods in PATHS.items():
        for method in {"get", "head", "post", "put", "patch", "delete"} - methods:
            if method == "head" and "get" in methods:
                continue
            refused = client.generic(method.upper(), path)
            assert (refused.status_code, refused["Content-Type"]) == (405, "application/problem+json"), path
            wanted = methods | ({"head"} if "get" in methods else set())
            assert {each.strip().lower() for each in refused["Allow"].split(",")} == wanted
            if method != "head":
                assert method.upper() in refused.json()["detail"]
                assert refused.json()["request_id"] == refused["X-Request-ID"]


def test_no_read_demands_what_its_description_calls_a_choice() -> None:
    """Only `series` of the history has no value that would suit everybody."""
    demanded = {
        (path, each["name"])
        for path, methods in api.get_openapi_schema(path_prefix="/api/v1/")["paths"].items()
        for each in methods.get("get", {}).get("parameters", ())
        if each["required"] and each["in"] != "path"
    }
    assert demanded == {("/api/v1/history", "series")}
