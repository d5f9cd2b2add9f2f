"""The agent's manifests: valid by the schemas, and exactly the rights that its driver uses."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner
from django.urls import resolve

from coordinator.__main__ import main
from coordinator.scaling.kubernetes import KubernetesDriver, KubernetesError
from coordinator.scaling.policy import decode_policy
from dashboard.api.v1.scaling import Figure

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes" / "agent"
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "agent.yaml").read_text()))
Right = tuple[str, str, str, str]


def named(kind: str) -> dict[str, Any]:
    [found] = [each for each in OBJECTS if each["kind"] == kind]
    return found


def rights_of(role: dict[str, Any]) -> set[Right]:
    """(group, resource, name, verb) of each thing it allows; the name "" is any."""
    return {
        (group, resource, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


class GuardedCluster:
    """An API server that answers as Kubernetes does, and only what a role allows; keeps what was asked."""

    PATH = re.compile(
        r"/(?:api|apis/(?P<group>\w+))/v1/namespaces/kennel/(?P<kind>\w+)(?:/(?P<name>[\w-]+)(?P<sub>/\w+)?)?$"
    )

    def __init__(self, rights: set[Right]) -> None:
        self.rights = rights
        self.used: set[Right] = set()
        self.replicas = 3

    async def answer(self, request: web.Request) -> web.Response:
        place = self.PATH.match(request.path)
        assert place is not None, request.path
        group, kind = place["group"] or "", place["kind"] + (place["sub"] or "")
        verb = "patch" if request.method == "PATCH" else "get" if place["name"] else "list"
        matching = {(group, kind, "", verb), (group, kind, place["name"] or "", verb)} & self.rights
        if not matching:
            said = {"kind": "Status", "status": "Failure", "code": 403, "message": f"cannot {verb} {kind}"}
            return web.json_response(said, status=403)
        self.used |= matching
        if kind == "pods":
            pods = [{"metadata": {"name": "kennel-worker-a"}}, {"metadata": {"name": "kennel-worker-b"}}]
            return web.json_response({"kind": "PodList", "items": pods})
        if verb == "patch":
            self.replicas = (await request.json())["spec"]["replicas"]
        return web.json_response(
            {
                "kind": "Scale",
                "apiVersion": "autoscaling/v1",
                "metadata": {"name": "kennel-worker", "resourceVersion": "7"},
                "spec": {"replicas": self.replicas},
                "status": {"replicas": self.replicas, "selector": "app.kubernetes.io/name=kennel-worker"},
            }
        )


@pytest.fixture
async def cluster() -> AsyncIterator[tuple[GuardedCluster, KubernetesDriver]]:
    guarded = GuardedCluster(rights_of(named("Role")))
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", guarded.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()

    async def leaders() -> set[str]:
        return {"kennel-worker-b"}

    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield guarded, KubernetesDriver("kennel-worker", namespace="kennel", url=url, leaders=leaders)
    await runner.cleanup()


async def test_the_driver_works_with_the_rights_of_the_role_and_needs_each(
    cluster: tuple[GuardedCluster, KubernetesDriver],
) -> None:
    guarded, driver = cluster
    await driver.scale(5)
    await driver.scale(2)
    assert guarded.replicas == 2
    assert guarded.used == rights_of(named("Role"))
    for right in rights_of(named("Role")):
        guarded.rights = rights_of(named("Role")) - {right}
        guarded.replicas = 3
        with pytest.raises(KubernetesError, match="403"):
            await driver.scale(1)


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    for manifest in OBJECTS:
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


def test_the_agent_bears_its_role_and_no_other_right() -> None:
    pod = named("Deployment")["spec"]["template"]
    account = named("ServiceAccount")["metadata"]["name"]
    binding = named("RoleBinding")
    assert pod["spec"]["serviceAccountName"] == account
    assert binding["roleRef"]["name"] == named("Role")["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    context = pod["spec"]["containers"][0]["securityContext"]
    assert context["readOnlyRootFilesystem"] is True and context["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    labels = pod["metadata"]["labels"].items()
    for kind in ("NetworkPolicy", "PodDisruptionBudget", "Deployment"):
        spec = named(kind)["spec"]
        assert (spec.get("podSelector") or spec["selector"])["matchLabels"].items() <= labels


def test_the_command_of_the_agent_is_one_that_the_command_line_takes() -> None:
    words = named("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    policy = next(word.partition("=")[2] for word in words if word.startswith("--policy="))
    assert decode_policy(policy).minimum == 2
    deployment = next(word.partition("=")[2] for word in words if word.startswith("--deployment="))
    assert named("Role")["rules"][0]["resourceNames"] == [deployment]
    # Outside a cluster it gets as far as asking who it is.
    env = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}
    done = CliRunner().invoke(main, words, env=env)
    assert done.exit_code == 1 and "there is no service account here" in done.output
    done = CliRunner().invoke(main, [*words, "--", "sleep", "9"], env=env)
    assert done.exit_code == 2 and "give one of" in done.output


def test_the_overlay_takes_out_what_would_scale_the_same_deployment() -> None:
    overlay = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert overlay["resources"] == ["..", "agent.yaml"]
    patches = [yaml.safe_load(each["patch"]) for each in overlay["patches"]]
    gone = {(each["kind"], each["metadata"]["name"]) for each in patches if each.get("$patch") == "delete"}
    keda = list(yaml.safe_load_all((FOLDER.parent / "scaling.yaml").read_text()))
    assert gone == {(each["kind"], each["metadata"]["name"]) for each in keda}


@pytest.mark.parametrize("overlay", ["agent", "figure"])
def test_workers_of_an_overlay_report_to_its_agent_and_have_the_time_to_end_their_jobs(overlay: str) -> None:
    folder = FOLDER.parent / overlay
    patches = [
        yaml.safe_load(each["patch"])
        for each in yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]
    ]
    [worker] = [each for each in patches if isinstance(each, dict) and each["kind"] == "Deployment"]
    spec = worker["spec"]["template"]["spec"]
    env = {each["name"]: each["value"] for each in spec["containers"][0]["env"]}
    agents = [
        each
        for each in yaml.safe_load_all((folder / f"{overlay}.yaml").read_text())
        if each["kind"] == "Deployment"
    ]
    words = agents[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words[:2] == ["scale", env["KENNEL_POOL"]]
    assert float(env["KENNEL_STOP_SECONDS"]) < spec["terminationGracePeriodSeconds"]


def test_keda_follows_the_figure_that_the_dashboard_answers() -> None:
    folder = FOLDER.parent / "figure"
    for manifest in yaml.safe_load_all((folder / "figure.yaml").read_text()):
        if not manifest["apiVersion"].startswith("keda.sh"):
            assert kubernetes_validate.validate(manifest, "1.31", strict=True) == "1.31"
    [patch] = [
        yaml.safe_load(each["patch"])
        for each in yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]
        if "target" in each
    ]
    [trigger] = next(each["value"] for each in patch if each["path"] == "/spec/triggers")
    place = urlsplit(trigger["metadata"]["url"]).path
    assert resolve(place).url_name == "scaling-figure"
    assert trigger["metadata"]["valueLocation"] in Figure.__struct_fields__
