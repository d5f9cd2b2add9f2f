"""Templates as files hold them, less the indentation: it is for those who read the source, and a page repeats it in every row.
And drawing them."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest
from django.template import Origin
from django.template.backends.django import Template
from django.template.context import make_context
from django.template.loaders import filesystem
from django.utils.safestring import SafeString

_INDENTATION = re.compile(r"\n[ \t]+")


class Loader(filesystem.Loader):
    """Reads our own templates; lines stay, so that errors name the right one. The values of variables are not touched."""

    def get_contents(self, origin: Origin) -> str:
        return _INDENTATION.sub("\n", super().get_contents(origin))


def draw(template: Template, context: dict[str, Any], request: HttpRequest | None = None) -> SafeString:
    """The text of a template. Nothing of its context waits for the garbage collector, which stops all threads.

    Django's contexts and what is pushed onto them refer to each other: some three hundred objects a page.
    """
    made = make_context(context, request)
    try:
        text: SafeString = template.template.render(made)
        return text
    finally:
        made.dicts.clear()
        made.render_context.dicts.clear()
