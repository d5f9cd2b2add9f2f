"""Each public name says what it guarantees and what not, then its parameters, what it returns and raises, with an example.

The reference draws these sections as tables, so they are read here by the parser that the reference uses.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
import pytest
from griffe import Docstring, DocstringSectionKind, Parser

import coordinator
from coordinator.client import Client
from coordinator.config import StorageConfig
from coordinator.leadership.semaphore import BlobDistributedSemaphore
from coordinator.leadership.term import LeaseConfig
from coordinator.tables.bulk import BulkWrite
from coordinator.tables.commit import commit

PROMISING = (
    *("Storage", "Worker", "Gate", "Election", "BlobDistributedMutex", "UniqueIdGenerator", "Term", "Queue"),
    *("QueueListener", "ShardedQueue", "Table", "Outbox", "Saga", "Pipeline", "ScalingAgent", "Client"),
    *("LocalProcessDriver", "PollingRelease", "ListeningRelease", "BlobDistributedSemaphore", "BulkWrite"),
    *("optimistic_update", "commit", "idempotent", "process_inline", "requeue_poison"),
)
"""What makes a promise: its docstring says what it guarantees, what not, what it raises, and shows a call."""

Sections = dict[DocstringSectionKind, Any]
Kind = DocstringSectionKind


def public() -> dict[str, Any]:
    """Every public class and function by its name; a second name of the same is left out."""
    more = (Client, LeaseConfig, StorageConfig, BlobDistributedSemaphore, BulkWrite, commit)
    named = {name: getattr(coordinator, name) for name in coordinator.__all__} | {
        each.__name__: each for each in more
    }
    return {
        name: each
        for name, each in named.items()
        if getattr(each, "__module__", "").startswith("coordinator") and each.__name__ == name
    }


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Those, and the methods of the classes, inherited ones included."""
    for name, each in public().items():
        yield name, each
        if not inspect.isclass(each):
            continue
        for owner in each.__mro__:
            for method, found in vars(owner).items():
                function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
                function = function.fget if isinstance(function, property) else function
                if (
                    owner.__module__.startswith("coordinator")
                    and not method.startswith("_")
                    and inspect.isfunction(function)
                ):
                    yield f"{name}.{method}", function


CALLABLES = dict(callables())


def sections(thing: Any) -> Sections:
    text = (
        inspect.getdoc(thing)
        if not inspect.isclass(thing)
        else inspect.cleandoc(vars(thing)["__doc__"] or "")
    )
    parsed = Docstring(text or "").parse(Parser.google, warnings=False)
    return {section.kind: section.value for section in parsed}


def parameters(thing: Any) -> set[str]:
    """What a caller may give, as the docstring names it."""
    if dataclasses.is_dataclass(thing):
        return {field.name for field in dataclasses.fields(thing) if not field.name.startswith("_")}
    if inspect.isclass(thing) and issubclass(thing, msgspec.Struct):
        return set(thing.__struct_fields__)
    if inspect.isclass(thing) and issubclass(thing, tuple):
        return set(thing._fields)  # type: ignore[attr-defined]
    if inspect.isclass(thing) and ("__init__" not in vars(thing) or Protocol in thing.__bases__):
        return set()
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    given = inspect.signature(thing).parameters.values()
    return {stars.get(each.kind, "") + each.name for each in given} - {"self", "cls"}


def faults(name: str, thing: Any) -> Iterator[str]:
    """What is wrong with the docstring of that name."""
    found = sections(thing)
    if not found.get(Kind.text):
        yield "says nothing"
    described = {
        each.name for kind in (Kind.parameters, Kind.attributes) for each in found.get(kind, ()) or ()
    }
    for missing in sorted(parameters(thing) - described):
        yield f"does not describe {missing}"
    for stale in sorted(described - parameters(thing)):
        yield f"describes {stale}, which it does not have"
    returns = "None" if inspect.isclass(thing) else str(inspect.signature(thing).return_annotation)
    says = found.keys() & {Kind.returns, Kind.yields}
    if parameters(thing) and not says and returns != "None" and "AsyncIterator" not in returns:
        yield "does not say what it returns"
    if name in PROMISING:
        text = " ".join(found[Kind.text].split())
        if "Guarantees" not in text or "Does not guarantee" not in text:
            yield "does not say what it guarantees, and what not"
        for kind in (Kind.raises, Kind.examples):
            if kind not in found:
                yield f"has no section {kind.value}"


@pytest.mark.parametrize("name", CALLABLES)
def test_a_public_name_is_documented_whole(name: str) -> None:
    assert list(faults(name, CALLABLES[name])) == []


def test_what_makes_a_promise_is_public() -> None:
    assert set(PROMISING) <= CALLABLES.keys()


def test_a_docstring_that_lacks_a_section_is_found() -> None:
    def commit(table: str, other: int) -> int:
        """Write.

        Args:
            rows: The table.
        """

    assert list(faults("commit", commit)) == [
        "does not describe other",
        "does not describe table",
        "describes rows, which it does not have",
        "does not say what it returns",
        "does not say what it guarantees, and what not",
        "has no section raises",
        "has no section examples",
    ]
