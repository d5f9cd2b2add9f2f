"""The whole API tried with what its schema allows and forbids, against a live dashboard over a real account.

Promises: nothing ends in a server error, every status and body is one that the schema tells of, what the schema forbids
is refused, and every door is shut without a token.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import requests
import schemathesis
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import booleans
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
    use_after_free,
)

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.realtime.protocol import (
    GateStatus,
    LeadershipStatus,
    ListenerStatus,
    SequenceStatus,
    WorkerState,
)
from coordinator.testing.azurite import Azurite
from dashboard.api.v1.api import api
from tests.support.azurite import started_azurite
from tests.support.dashboard import BareWorker, Dashboard

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    missing_required_header,
    unsupported_method,
    ignored_auth,
    use_after_free,
]
TOKEN = "ks_schema_0123456789_0123456789_0123456789"
_MAKE_TOKEN = f"""
from dashboard.core import tokens
from dashboard.models import WorkerToken
tokens.create("schema", scope="act", role="admin", token={TOKEN!r})
# An id that nobody hits by chance: a token that is revoked in between would have all the rest refused, and all be well.
WorkerToken.objects.filter(digest=tokens.digest_of({TOKEN!r})).update(id=7_000_000_000_017)
"""
# What there is, by the kind of thing in an address: of invented names most answers would be that there is no such thing.
KNOWN = {
    "gates": "schema-gate",
    "queues": "schema-queue",
    "sequences": "schema-sequence",
    "leaders": "schema-election",
    "workers": "schema-instance",
}

SCHEMA = schemathesis.openapi.from_dict(api.get_openapi_schema(path_prefix="/api/v1/"))
OPERATIONS = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations()}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A dashboard over an account of its own: what is made here has any name there is."""
    account: Azurite = started_azurite()
    unlimited = {f"KENNEL_API_{kind}": str(10**9) for kind in ("READS", "WRITES", "REFUSED")}
    folder: Path = tmp_path_factory.mktemp("schema")
    made = Dashboard(folder, account.connection_string, "schema-", unlimited)
    try:
        made.prepare().manage(code=_MAKE_TOKEN)
        made.start()
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(_fleet(made)):
            yield made
    finally:
        made.stop()
        account.kill()


@asynccontextmanager
async def _fleet(dashboard: Dashboard) -> AsyncIterator[None]:
    """What `KNOWN` names: made in the account, and told by a worker."""
    name = KNOWN.__getitem__
    worker = BareWorker(dashboard, "schema-worker")
    worker.instance = name("workers")
    worker.state = WorkerState(
        gates=(GateStatus(name("gates"), "closed", epoch=1, waiting=True),),
        listeners=(ListenerStatus(name("queues"), active_tasks=1, total_tasks=2, wanted_tasks=1),),
        elections=(LeadershipStatus(name("leaders"), role="leader", epoch=1, remaining_seconds=9.0),),
        sequences=(SequenceStatus(name("sequences"), first=1, last=1000, last_issued=1, issued=1),),
    )
    async with Storage.from_connection_string(
        dashboard.connection_string, config=StorageConfig(prefix=dashboard.prefix)
    ) as storage:
        await storage.gate(name("gates")).close(by="schema")
        await storage.queue(name("queues")).put({"order": 1})
        await storage.sequence(name("sequences")).next_id_async()
        async with worker:
            worker.beat()
            yield


def _try(live: Dashboard, label: str, examples: int, mode: GenerationMode) -> None:
    session = requests.Session()
    headers = {"Authorization": f"Bearer {TOKEN}"}

    @seed(int(os.environ.get("KENNEL_TEST_SEED", "20261121")))
    @settings(
        max_examples=examples,
        phases=(Phase.explicit, Phase.generate),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode), invented=booleans())
    def attempt(case: Case, invented: bool) -> None:
        kind = case.path.split("/")[3]
        if kind in KNOWN and not invented and mode is GenerationMode.POSITIVE:
            case.path_parameters = dict.fromkeys(case.path_parameters, KNOWN[kind])
        answer = case.call(base_url=live.url, headers=headers, session=session, timeout=60)
        assert answer.status_code != 401, "the token is good: nothing was tried"
        case.validate_response(answer, checks=CHECKS)
        assert answer.headers["x-request-id"]

    with session:
        attempt()


@pytest.mark.parametrize("label", OPERATIONS)
def test_every_operation_answers_as_its_schema_says(live: Dashboard, label: str) -> None:
    _try(live, label, 3, GenerationMode.POSITIVE)
    _try(live, label, 2, GenerationMode.NEGATIVE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_operation_answers_as_its_schema_says_at_length(live: Dashboard, label: str) -> None:
    _try(live, label, 100, GenerationMode.POSITIVE)
    _try(live, label, 100, GenerationMode.NEGATIVE)
