"""The schema of what we answer, made from the structs that we encode.

Answers are encoded by msgspec, which is some ten times as quick as validating and dumping models; django-ninja wants
models to write the schema from. `described` makes these from the structs, so that there is one source of both.
"""

from __future__ import annotations

import dataclasses
import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, Field, create_model


@cache
def described(kind: Any) -> type[BaseModel]:
    """A model with the fields of a struct or dataclass, all within included. For the schema alone: validates nothing."""
    fields: dict[str, Any] = {}
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        for each in dataclasses.fields(kind):
            required = each.default is each.default_factory is dataclasses.MISSING
            fields[each.name] = (_translated(hints[each.name]), _field(required))
    else:
        if (tag := kind.__struct_config__.tag) is not None:
            fields[kind.__struct_config__.tag_field] = (Literal[tag], Field())
        for field in msgspec.structs.fields(kind):
            fields[field.encode_name] = (_translated(field.type), _field(field.required))
    made: type[BaseModel] = create_model(kind.__name__, __doc__=_summary(kind), **fields)
    return made


def _field(required: bool) -> Any:
    return Field() if required else Field(default_factory=lambda: None)


@cache
def page_of(kind: Any) -> type[BaseModel]:
    """The model of one page of a list."""
    text = "One page; `next` is the cursor of the page after it, null at the end."
    fields: dict[str, Any] = {"items": (list[described(kind)], Field()), "next": (str | None, Field())}  # type: ignore[misc]
    made: type[BaseModel] = create_model(f"{kind.__name__}Page", __doc__=text, **fields)
    return made


def _translated(kind: Any) -> Any:
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        return described(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        # The bounds are checked where the value came in.
        return _translated(arguments[0])
    if origin in (Union, types.UnionType):
        return Union[tuple(_translated(each) for each in arguments)]  # noqa: UP007
    if origin in (tuple, list, dict):
        return origin[tuple(each if each is Ellipsis else _translated(each) for each in arguments)]
    return kind


def _summary(kind: Any) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())
