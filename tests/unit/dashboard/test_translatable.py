"""Every text that people read in a template goes through gettext."""

from __future__ import annotations

import ast
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.template.base import Lexer, TokenType
from django.template.loader import get_template
from django.utils import translation

from dashboard.core import js_strings as words

TEMPLATES = Path(settings.BASE_DIR) / "templates"
READ_ALOUD = ("title", "aria-label", "placeholder", "alt", "data-label")
SAME_EVERYWHERE = {"Kennel", "UTC", "JSON", "CSV"}
BEGINS = ("blocktranslate", "comment")
LETTERS = re.compile(r"[^\W\d_]{2,}")


def bare(source: str) -> list[str]:
    """The words of a template that stand outside its translate tags."""
    text, skipping = "", ""
    for token in Lexer(source).tokenize():
        word = token.split_contents()[0] if token.token_type is TokenType.BLOCK else ""
        if skipping:
            skipping = "" if word == f"end{skipping}" else skipping
        elif word in BEGINS:
            skipping = word
        elif token.token_type is TokenType.BLOCK and word == "block" and token.contents == "block body":
            skipping = "block"  # the attributes of <body>, no text
        elif token.token_type is TokenType.TEXT:
            text += token.contents
        else:
            text += " "
    reader = _Reader()
    reader.feed(text)
    reader.close()
    said = [word for piece in reader.pieces for word in LETTERS.findall(piece) if word not in SAME_EVERYWHERE]
    return said + re.findall(r"""default(?:_if_none)?:["']([A-Za-z][^"']*)["']""", source)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style", "kbd"):
            self.inside.append(tag)
        self.pieces += [value for name, value in attrs if name in READ_ALOUD and value]

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.pieces.append(data)


@pytest.mark.parametrize(
    "path",
    # What allauth fills with its own, translated words has none, and is no whole HTML.
    [path for path in sorted(TEMPLATES.rglob("*.html")) if "elements" not in path.parts],
    ids=lambda path: str(path.relative_to(TEMPLATES)),
)
def test_a_template_has_no_text_of_its_own(path: Path) -> None:
    found = bare(path.read_text(encoding="utf-8"))
    assert not found, f"put these into {{% translate %}} or {{% blocktranslate trimmed %}}: {found}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("<p>Bare text</p>", ["Bare", "text"]),
        ('<p title="Told">{{ value }}</p>', ["Told"]),
        ('{% translate "Told" %}<p>{{ value|default:"nobody" }}</p>', ["nobody"]),
        ("{% blocktranslate trimmed %}Told <em>so</em>{% endblocktranslate %}", []),
        ('<kbd>Tab</kbd><script>let it = "be";</script><p aria-label="{% translate \'x\' %}">–</p>', []),
    ],
)
def test_the_search_for_bare_text_finds_what_it_should(source: str, found: list[str]) -> None:
    assert bare(source) == found


SAYS = {"ActionFailed", "act", "Attention", "success", "warning", "error", "info"}
DASHBOARD = Path(settings.BASE_DIR) / "dashboard"
SPEAKING = re.compile(r"(views|actions|api|conditions|bulk|dispatch|queries)\.py$|/api/v1/")
"""Modules that say something to people; the others write to the log, which stays English."""
PYTHON = [path for path in sorted(DASHBOARD.rglob("*.py")) if SPEAKING.search(str(path))]


def untranslated(source: str) -> list[str]:
    """What is told to people in so many words, by a call of `SAYS`, without gettext."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", getattr(call.func, "id", "")) in SAYS:
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            found += [ast.unparse(each) for each in given if " " in _said(each)]
    return found


def _said(expression: ast.expr) -> str:
    """What a plain or formatted string says itself."""
    pieces = expression.values if isinstance(expression, ast.JoinedStr) else [expression]
    return "".join(str(piece.value) for piece in pieces if isinstance(piece, ast.Constant))


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_python_tells_people_goes_through_gettext(path: Path) -> None:
    assert not untranslated(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('raise ActionFailed("There is none.")', 1),
        ('messages.error(request, f"{name} is gone.")', 1),
        ('act(request, change, done="It is done.")', 1),
        ('raise ActionFailed(_("There is none.")); act(request, _("{name}").format(name=name), "queues")', 0),
    ],
)
def test_the_search_for_untranslated_texts_finds_what_it_should(source: str, count: int) -> None:
    assert len(untranslated(source)) == count


def test_the_words_of_the_scripts_are_those_that_the_translators_are_given() -> None:
    said: set[str] = set()
    for script in (Path(settings.BASE_DIR) / "static" / "js").glob("*.js"):
        for call in re.findall(r"\bsay\(((?:[^()]|\([^()]*\))*)\)", script.read_text(encoding="utf-8")):
            said |= set(re.findall(r'"((?:[^"\\]|\\.)*)"', call))
    assert said == set(words.WORDS)


def test_a_catalogue_reaches_the_page(settings: Any, tmp_path: Path) -> None:
    folder = tmp_path / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "django.mo").write_bytes(catalogue("Something broke here", "Hier ging etwas kaputt"))
    settings.LOCALE_PATHS = [tmp_path]
    with translation.override("de"):
        assert "<h1>Hier ging etwas kaputt</h1>" in get_template("500.html").render()


def catalogue(said: str, translated: str) -> bytes:
    """A compiled catalogue of one text: magic, version, count, three offsets, then lengths and texts."""
    pairs = [(b"", b"Content-Type: text/plain; charset=UTF-8\n"), (said.encode(), translated.encode())]
    start = 28 + 16 * len(pairs)
    table, texts = b"", b""
    for side in (0, 1):
        for pair in pairs:
            table += struct.pack("<2I", len(pair[side]), start + len(texts))
            texts += pair[side] + b"\0"
    return struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0) + table + texts
