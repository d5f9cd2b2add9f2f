"""What users may import from `coordinator`. A change here is a change of the public API: say so in the CHANGELOG."""

import subprocess
import sys

import pytest

import coordinator
from coordinator import public
from tests.support.signatures import PINNED, text

FROM_THE_SOURCES = {
    "UniqueIdGenerator", "OptimisticSyncStore", "GlobalFlag", "PollingRelease", "ListeningRelease", "BlobDistributedMutex",
    "QueueListener", "queue_empty", "work_detected", "ActiveDequeueTasks",
}  # fmt: skip
PUBLIC = [
    "ANY", "ActiveDequeueTasks", "BatchDone", "BlobDistributedMutex", "Budget", "Delete", "Done",
    "DryRunDriver", "Election", "Gate", "GateConfig", "GateState", "GateTimeout", "GlobalFlag", "Idle",
    "IdleBackoff", "Insert", "KennelError", "Key", "LeadershipLost", "ListeningRelease",
    "LocalProcessDriver", "Merge", "MessageContext", "OptimisticSyncStore", "Outbox", "Pipeline",
    "PoisonRecord", "PollingRelease", "Prices", "Put", "Queue", "QueueConfig", "QueueEmpty",
    "QueueListener", "QueueState", "Reject", "Release", "Replace", "Retry", "RetryPolicy", "Row",
    "Saga", "SagaContext", "ScalingAgent", "ScalingPolicy", "ScalingRule", "SequenceConfig",
    "ShardedQueue", "Spending", "Steps", "Storage", "Table", "TargetLatency", "Term",
    "UniqueIdGenerator", "Update", "Upsert", "WorkDetected", "Worker", "current_batch", "current_message", "idempotent", "keeping",
    "once", "optimistic_update", "process_inline", "queue_empty", "requeue_poison", "work_detected",
]  # fmt: skip


def test_the_names_of_the_source_documents_can_be_imported():
    assert set(coordinator.__all__) >= FROM_THE_SOURCES


def test_the_public_names_are_these_and_no_others():
    assert sorted(coordinator.__all__) == sorted(PUBLIC)
    assert coordinator.__all__ == public.__all__
    assert all(hasattr(coordinator, name) for name in PUBLIC)
    assert set(PUBLIC) < set(dir(coordinator))


def test_a_name_that_is_not_there_is_missed_as_in_any_module():
    with pytest.raises(ImportError, match="cannot import name 'Lock' from 'coordinator'"):
        from coordinator import Lock  # noqa: F401
    with pytest.raises(AttributeError, match="module 'coordinator' has no attribute 'Lock'"):
        _ = coordinator.Lock


def loaded_by(program: str) -> set[str]:
    """The packages that a new process has imported."""
    asked = f"import sys; {program}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    return set(
        subprocess.run(
            [sys.executable, "-c", asked], capture_output=True, text=True, check=True
        ).stdout.split()
    )


@pytest.mark.parametrize(
    "program", ["import coordinator", "import coordinator.__main__", "import coordinator.errors"]
)
def test_the_command_line_and_the_errors_do_not_wait_for_the_azure_sdk(program):
    assert {"azure", "aiohttp", "requests", "asyncio"} & loaded_by(program) == set()


@pytest.mark.parametrize("program", ["import coordinator.testing.plugin", "import dashboard.demo.__main__"])
def test_any_pytest_of_an_environment_and_the_demo_do_not_wait_for_the_azure_sdk(program):
    assert {"azure", "aiohttp", "requests", "django"} & loaded_by(program) == set()


def test_the_signatures_of_the_public_names_are_pinned():
    assert PINNED.read_text() == text(), (
        "the public API changed: say so in the CHANGELOG, then run python -m tests.support.signatures"
    )
