"""What the driver of a deployment does when the cluster will not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import ConfigurationError
from coordinator.scaling import kubernetes
from coordinator.scaling.kubernetes import KubernetesDriver, KubernetesError

SCALE = {"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 2}, "status": {}}


class Scripted(KubernetesDriver):
    """Answers from a list; an exception in it is raised."""

    def answering(self, *answers: Any) -> list[str]:
        self.answers, self.asked = list(answers), list[str]()
        return self.asked

    async def _call(
        self, method: str, path: str, patch: Any = None, *, params: dict[str, str] | None = None
    ) -> Any:
        self.asked.append(method)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    "given", [{"deployment": ""}, {"namespace": ""}, {"url": "kubernetes.default.svc"}], ids=str
)
def test_a_driver_without_a_place_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="needs a deployment, a namespace"):
        KubernetesDriver(**({"deployment": "web", "url": "https://host"} | given))


def test_in_a_cluster_the_service_account_names_the_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)
    with pytest.raises(ConfigurationError, match="no service account here; give url and token"):
        KubernetesDriver.in_cluster("web")
    (tmp_path / "token").write_text("sesame")
    (tmp_path / "namespace").write_text("shop\n")
    assert KubernetesDriver.in_cluster("web").namespace == "shop"
    assert KubernetesDriver.in_cluster("web", namespace="other").namespace == "other"


async def test_what_is_as_wanted_is_not_written() -> None:
    driver = Scripted("web", url="https://host")
    asked = driver.answering(SCALE)
    await driver.scale(2)
    assert asked == ["GET"]


async def test_a_conflict_is_tried_five_times_and_then_raised() -> None:
    driver = Scripted("web", url="https://host")
    asked = driver.answering(*[SCALE, KubernetesError("conflict", status=409)] * 5)
    with pytest.raises(KubernetesError, match="conflict"):
        await driver.scale(3)
    assert asked == ["GET", "PATCH"] * 5


async def test_any_other_refusal_is_raised_at_once() -> None:
    driver = Scripted("web", url="https://host")
    asked = driver.answering(SCALE, KubernetesError("forbidden", status=403))
    with pytest.raises(KubernetesError, match="forbidden"):
        await driver.scale(3)
    assert asked == ["GET", "PATCH"]


async def test_a_deployment_that_was_never_scaled_has_no_instance() -> None:
    driver = Scripted("web", url="https://host")
    driver.answering({"spec": {}})
    assert await driver.actual() == 0


async def test_a_cluster_that_cannot_be_reached_is_an_error_without_a_status(unused_tcp_port: int) -> None:
    driver = KubernetesDriver("web", url=f"http://127.0.0.1:{unused_tcp_port}", token="sesame")
    with pytest.raises(KubernetesError, match="the cluster gave no answer") as caught:
        await driver.actual()
    assert caught.value.status is None and "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"message": "no right"}', "no right"), ("<html>", "<html>"), ("[1]", "[1]"), ("x" * 500, "x" * 300)],
)
def test_a_refusal_is_quoted_whatever_its_form(text: str, said: str) -> None:
    assert kubernetes._message(text) == said
