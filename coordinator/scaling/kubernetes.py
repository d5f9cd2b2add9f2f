"""Instances as the replicas of a Kubernetes deployment, through its scale subresource."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp

from coordinator.errors import ConfigurationError, KennelError
from coordinator.scaling.drivers import Jobs, Leaders, no_jobs, no_leaders

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
MARKED = "kennel/deletion-cost-by"
LEADER_COST = 1_000_000
_MOST_JOBS_COST = 100_000
_FORMER_COST = "1000"  # of leaders, before costs were marked


class KubernetesError(KennelError):
    """The cluster refused a request or gave no answer; `status` is the HTTP status (None without one)."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class KubernetesDriver:
    """Sets ``spec.replicas`` of a deployment.

    Guarantees that before a scale-in each pod that runs jobs gets a higher deletion cost than an idle one, and a pod
    that leads an election the highest, so that the cluster picks the idle first and leaders last. The cluster itself
    drains: it sends SIGTERM and waits for the pod's ``terminationGracePeriodSeconds``, in which a worker ends its jobs
    (for at most ``KENNEL_STOP_SECONDS``, which should be less). A conflict with another writer is tried again. Needs a
    role with get and patch of ``deployments/scale``, list and patch of ``pods``.

    `leaders` says the names (of pods) that lead, `jobs` how many jobs each runs. Connects to `url` with `token`, or from inside the cluster with the
    pod's own service account (`in_cluster`), which is read again for each call because it is renewed on disk.
    """

    def __init__(
        self,
        deployment: str,
        *,
        namespace: str = "default",
        url: str,
        token: str = "",
        token_file: Path | None = None,
        ca_file: Path | None = None,
        leaders: Leaders = no_leaders,
        jobs: Jobs = no_jobs,
        timeout_seconds: float = 10.0,
    ) -> None:
        if not deployment or not namespace or not url.startswith(("http://", "https://")):
            raise ConfigurationError("a Kubernetes driver needs a deployment, a namespace and an http(s) URL")
        self.deployment, self.namespace = deployment, namespace
        self._url = url.rstrip("/")
        self._token, self._token_file, self._ca_file = token, token_file, ca_file
        self._leaders, self._jobs = leaders, jobs
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    @classmethod
    def in_cluster(
        cls,
        deployment: str,
        *,
        namespace: str = "",
        leaders: Leaders = no_leaders,
        jobs: Jobs = no_jobs,
        timeout_seconds: float = 10.0,
    ) -> KubernetesDriver:
        """For an agent that runs in the cluster itself; `namespace` (default: its own) is that of the deployment."""
        if not (_ACCOUNT / "token").is_file():
            raise ConfigurationError("there is no service account here; give url and token instead")
        return cls(
            deployment,
            url="https://kubernetes.default.svc",
            token_file=_ACCOUNT / "token",
            ca_file=_ACCOUNT / "ca.crt",
            namespace=namespace or (_ACCOUNT / "namespace").read_text().strip(),
            leaders=leaders,
            jobs=jobs,
            timeout_seconds=timeout_seconds,
        )

    async def actual(self) -> int:
        scale = await self._call("GET", self._scale_path)
        return int(scale["spec"].get("replicas") or 0)

    async def scale(self, wanted: int) -> None:
        for attempt in range(5):
            current = await self._call("GET", self._scale_path)
            now = int(current["spec"].get("replicas") or 0)
            if now == wanted:
                return
            if wanted < now:
                await self._mark(current["status"].get("selector", ""))
            patch = {
                "metadata": {"resourceVersion": current["metadata"]["resourceVersion"]},
                "spec": {"replicas": wanted},
            }
            try:
                await self._call("PATCH", self._scale_path, patch)
                return
            except KubernetesError as error:
                if error.status != 409 or attempt == 4:
                    raise

    async def _mark(self, selector: str) -> None:
        """Mark what each pod costs to delete: leaders most, then by jobs; a mark of ours that holds no more is taken off."""
        leaders, jobs = await self._leaders(), await self._jobs()
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        pods = (await self._call("GET", path, params={"labelSelector": selector}))["items"]
        for pod in pods:
            metadata = pod["metadata"]
            name, annotations = metadata["name"], metadata.get("annotations") or {}
            running = min(jobs.get(name, 0), _MOST_JOBS_COST)
            cost = str(LEADER_COST + running) if name in leaders else str(running) if running else None
            wanted = {DELETION_COST: cost, MARKED: "kennel" if cost else None}
            now = {key: annotations.get(key) for key in wanted}
            is_ours = now[MARKED] is not None or now[DELETION_COST] == _FORMER_COST
            if now == wanted or (cost is None and not is_ours):
                continue  # a cost that somebody else set stays
            await self._call("PATCH", f"{path}/{name}", {"metadata": {"annotations": wanted}})

    @property
    def _scale_path(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.deployment}/scale"

    async def _call(
        self, method: str, path: str, patch: Any = None, *, params: dict[str, str] | None = None
    ) -> Any:
        token = self._token or (
            (await asyncio.to_thread(self._token_file.read_text)).strip() if self._token_file else ""
        )
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if patch is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        context = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else True
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.request(
                    method,
                    self._url + path,
                    data=None if patch is None else json.dumps(patch),
                    params=params,
                    headers=headers,
                    ssl=context,
                ) as answer,
            ):
                text = await answer.text()
                if answer.status >= 400:
                    raise KubernetesError(
                        f"{method} {path}: the cluster answered {answer.status} {_message(text)}",
                        status=answer.status,
                    )
                return json.loads(text)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise KubernetesError(f"{method} {path}: the cluster gave no answer ({error!r})") from error


def _message(text: str) -> str:
    try:
        return str(json.loads(text).get("message", ""))[:300]
    except (ValueError, AttributeError):
        return text[:300]
