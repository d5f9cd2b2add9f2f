"""The public API in text: each public name, its parameters and its public methods, and the options that `Unpack` takes.

`python -m tests.support.signatures` writes it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import coordinator

PINNED = Path(__file__).resolve().parents[1] / "unit" / "core" / "public_signatures.txt"


def lines() -> Iterator[str]:
    named: set[str] = set()
    for name in sorted(coordinator.__all__):
        public = getattr(coordinator, name)
        if inspect.isclass(public):
            yield f"class {name}{_parameters(public)}"
            of_python = {
                member for base in public.__mro__ if base.__module__ == "builtins" for member in vars(base)
            }
            for member, value in sorted(inspect.getmembers(public)):
                if member.startswith("_") or member in of_python:
                    continue
                if isinstance(inspect.getattr_static(public, member), property):
                    yield f"    {member}"
                elif callable(value):
                    yield f"    {member}{_parameters(value)}"
                    named |= set(re.findall(r"Unpack\[(\w+)\]", str(inspect.get_annotations(value))))
        elif callable(public):
            yield f"{name}{_parameters(public)}"
        else:
            yield name
    for options in sorted(named):
        yield f"options {options}"
        yield from _options(options)


def _options(name: str) -> Iterator[str]:
    """The keys of a `TypedDict`, each with its type."""
    found = next(
        vars(module)[name]
        for title, module in sorted(sys.modules.items())
        if title.startswith("coordinator.") and name in vars(module)
    )
    for key, kind in sorted(found.__annotations__.items()):
        yield f"    {key}: {getattr(kind, '__forward_arg__', kind)!r}"


def _parameters(function: object) -> str:
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type] # or ValueError
    except (TypeError, ValueError):
        return "(…)"
    # A default that is an object shows its address or a function's name; that there is one is what counts.
    shown = [
        each.replace(default="…")
        if each.default is not each.empty and not isinstance(each.default, str | int | float | bool | None)
        else each
        for each in signature.parameters.values()
    ]
    return str(signature.replace(parameters=shown)).replace("coordinator.", "")


def text() -> str:
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    PINNED.write_text(text())
