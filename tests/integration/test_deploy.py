"""What deploy/ holds is valid, as far as it can be told without a cluster, and agrees with the code."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import promql_parser
import pytest
import yaml

from dashboard.api.metrics import FleetCollector
from dashboard.live.fleet import Fleet, Headline, StorageView
from tests.support.readme import PROJECT

DEPLOY = PROJECT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
FOREIGN = {"Kustomization", "ScaledObject", "TriggerAuthentication"}
"""Kinds that are not Kubernetes' own: no packaged schema knows them."""


def tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A program of our own environment."""
    program = Path(sys.executable).with_name(name)
    return subprocess.run([program, *arguments], capture_output=True, text=True, cwd=PROJECT, timeout=60)


def objects() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from filter(None, yaml.safe_load_all(path.read_text()))


def named(kind: str, name: str) -> dict[str, Any]:
    [found] = [o for o in objects() if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def test_the_dockerfile_has_nothing_to_find_fault_with() -> None:
    done = tool("hadolint", "--no-fail", "--format", "json", "deploy/Dockerfile")
    assert json.loads(done.stdout) == []


def test_the_images_run_as_a_user_without_rights_and_are_checked() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", text, re.MULTILINE | re.DOTALL))
    for stage in ("worker", "dashboard"):
        assert "USER 10001:10001" in stages[stage]
    assert "HEALTHCHECK" in stages["dashboard"]
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for name in source.split():
            assert (PROJECT / name).exists(), name
            kept = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
            assert f"!{name}" in kept, f"{name} is copied but not sent to the builder"


def test_the_compose_file_fits_the_specification() -> None:
    done = tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "deploy/compose.yaml")
    assert done.returncode == 0, done.stdout


def test_the_compose_file_starts_what_it_promises_and_lets_nothing_write() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert {"azurite", "postgres", "redis", "dashboard-1", "dashboard-2", "worker"} <= services.keys()
    for name in ("dashboard-1", "dashboard-2", "worker", "setup", "producer"):
        service = services[name]
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name
    published = {name for name, service in services.items() if service.get("ports")}
    assert published == {"proxy"}
    for port in services["proxy"]["ports"]:
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    checked = 0
    for manifest in objects():
        if manifest["kind"] not in FOREIGN:
            assert kubernetes_validate.validate(manifest, version, strict=True) == version
            checked += 1
    assert checked > 15


def test_a_misspelt_field_in_a_manifest_would_be_found() -> None:
    manifest = named("Deployment", "kennel-worker")
    manifest["spec"]["template"]["spec"]["containers"][0]["enviroment"] = []  # codespell:ignore
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, "1.37", strict=True)


def test_every_manifest_is_in_the_kustomization_except_the_example_of_a_secret() -> None:
    listed = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert {*listed, "kustomization.yaml", "secret.example.yaml"} == {path.name for path in MANIFESTS}


def test_pods_have_no_rights_that_they_do_not_need() -> None:
    for kind, name in (
        ("Deployment", "kennel-dashboard"),
        ("Deployment", "kennel-worker"),
        ("Job", "kennel-migrate"),
    ):
        pod = named(kind, name)["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]


def test_the_selectors_of_services_budgets_and_policies_meet_their_pods() -> None:
    labels = {
        o["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        for o in objects()
        if o["kind"] in ("Deployment", "Job")
    }
    selected = [
        selector["app.kubernetes.io/name"]
        for o in objects()
        if o["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy")
        for part in (o["spec"].get("selector") or o["spec"].get("podSelector") or {},)
        if (selector := part.get("matchLabels", part))
    ]
    assert set(selected) == labels
    assert {o["spec"]["scaleTargetRef"]["name"] for o in objects() if o["kind"] == "ScaledObject"} <= labels


def test_probes_ask_addresses_that_exist_by_a_host_that_is_allowed() -> None:
    from django.urls import resolve

    allowed = named("ConfigMap", "kennel-dashboard")["data"]["ALLOWED_HOSTS"].split(",")
    [container] = named("Deployment", "kennel-dashboard")["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert resolve(asked["path"]).url_name in ("healthz", "readyz")
        [header] = asked["httpHeaders"]
        assert header["name"] == "Host" and header["value"] in allowed


def test_workers_get_longer_to_stop_than_they_take() -> None:
    from coordinator.worker import STOP_SECONDS

    pod = named("Deployment", "kennel-worker")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 1.5 * STOP_SECONDS
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert int(services["worker"]["stop_grace_period"].rstrip("s")) > 1.5 * STOP_SECONDS
    unit = read_unit(DEPLOY / "systemd" / "kennel-worker@.service")
    assert int(unit["Service"]["TimeoutStopSec"]) > 1.5 * STOP_SECONDS


def test_the_scaled_object_says_nothing_that_keda_does_not_know() -> None:
    scaled = named("ScaledObject", "kennel-worker")["spec"]
    assert scaled.keys() <= {
        "scaleTargetRef", "minReplicaCount", "maxReplicaCount", "idleReplicaCount", "pollingInterval",
        "cooldownPeriod", "initialCooldownPeriod", "fallback", "advanced", "triggers",
    }  # fmt: skip
    assert scaled["fallback"].keys() == {"failureThreshold", "replicas", "behavior"}
    [trigger] = scaled["triggers"]
    assert trigger["type"] == "azure-queue"
    assert trigger["metadata"].keys() <= {
        "accountName", "queueName", "queueLength", "activationQueueLength", "queueLengthStrategy",
        "connectionFromEnv", "cloud", "endpointSuffix",
    }  # fmt: skip
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert named("TriggerAuthentication", trigger["authenticationRef"]["name"])
    assert 0 < scaled["minReplicaCount"] <= scaled["fallback"]["replicas"] <= scaled["maxReplicaCount"]


def test_nobody_is_believed_about_addresses_but_the_proxy() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    proxy = compose["proxy"]["networks"]["inside"]["ipv4_address"]
    for name in ("dashboard-1", "dashboard-2"):
        assert compose[name]["environment"]["FORWARDED_ALLOW_IPS"] == proxy
    told = named("ConfigMap", "kennel-dashboard")["data"]["FORWARDED_ALLOW_IPS"]
    assert "*" not in told and "/0" not in told


def test_every_image_that_others_made_is_named_by_its_digest() -> None:
    bases = re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    images = [base for base in bases if base != "base"] + [each["image"] for each in services]
    foreign = [image for image in images if not image.startswith("kennel-")]
    assert len(foreign) >= 7
    assert [image for image in foreign if not re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", image)] == []


def test_settings_given_in_deploy_are_settings_that_somebody_reads() -> None:
    read = "".join(
        path.read_text()
        for path in (
            PROJECT / "dashboard" / "settings.py",
            PROJECT / "coordinator" / "storage.py",
            PROJECT / "coordinator" / "worker.py",
            PROJECT / "examples" / "orders.py",
        )
    )
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    given = {
        name for service in ("dashboard-1", "worker", "producer") for name in services[service]["environment"]
    }
    for o in objects():
        given |= (
            {*o.get("data", {}), *o.get("stringData", {})} if o["kind"] in ("ConfigMap", "Secret") else set()
        )
    given -= {"FORWARDED_ALLOW_IPS"}  # uvicorn's own
    assert {name for name in given if f'"{name}"' not in read} == set()


def read_unit(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(path)
    return unit


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_units_are_hardened_and_what_systemd_expects(path: Path, tmp_path: Path) -> None:
    unit = read_unit(path)
    service = unit["Service"]
    assert service["User"] == "kennel" and service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict" and service["CapabilityBoundingSet"] == ""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return  # not on every machine; the lines above are what can be told without it
    # Our programs are not on this machine: any that exists does for the check.
    text = re.sub(r"/opt/kennel/venv/bin/\w+", "/bin/true", path.read_text())
    (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        [analyze, "verify", tmp_path / path.name], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def metric_names() -> set[str]:
    """The names that /metrics can tell, as Prometheus keeps them."""
    fleet = Fleet(taken_at=0.0, headline=Headline("Idle", ""), storage=StorageView(as_of=0.0))
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in FleetCollector(fleet).collect()
    }


def selectors_of(expression: Any) -> Iterator[str]:
    """The metric names in a parsed PromQL expression."""
    match type(expression).__name__:
        case "VectorSelector":
            yield expression.name
        case "MatrixSelector":
            yield from selectors_of(expression.vector_selector)
        case "Call":
            for argument in expression.args:
                yield from selectors_of(argument)
        case "BinaryExpr":
            yield from selectors_of(expression.lhs)
            yield from selectors_of(expression.rhs)
        case "NumberLiteral" | "StringLiteral":
            return
        case "SubqueryExpr" | "AggregateExpr" | "ParenExpr" | "UnaryExpr":
            yield from selectors_of(expression.expr)
        case other:
            pytest.fail(f"an unknown kind of expression: {other}")


def assert_known(text: str) -> None:
    names = set(selectors_of(promql_parser.parse(text)))
    assert names, f"{text} asks for nothing"
    assert names <= metric_names() | {"up"}, text


def test_alert_rules_parse_and_ask_for_metrics_that_exist() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "kennel.rules.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    for rule in rules:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (PROJECT / page).read_text(), re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
        assert_known(rule["expr"])


def test_the_grafana_dashboard_is_laid_out_and_asks_for_metrics_that_exist() -> None:
    board = json.loads((DEPLOY / "grafana" / "kennel.json").read_text())
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        for target in panel["targets"]:
            assert_known(target["expr"])
    for annotation in board["annotations"]["list"]:
        assert_known(annotation["expr"])
    assert "${datasource}" in json.dumps(board) and board["templating"]["list"][0]["name"] == "datasource"
