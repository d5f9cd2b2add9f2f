"""Templates as files hold them, less the indentation: it is for those who read the source, and a page repeats it in every row."""

from __future__ import annotations

import re

from django.template import Origin
from django.template.loaders import filesystem

_INDENTATION = re.compile(r"\n[ \t]+")


class Loader(filesystem.Loader):
    """Reads our own templates; lines stay, so that errors name the right one. The values of variables are not touched."""

    def get_contents(self, origin: Origin) -> str:
        return _INDENTATION.sub("\n", super().get_contents(origin))
