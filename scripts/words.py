"""Words and phrases that Kennel's texts avoid, each with the better one; run by `make lint`.

Reads the documentation, the texts of templates, the help of every command, docstrings, and what the code says while it runs, and prints
`file:line: phrase → better phrase`.
Code is left out: fenced and indented blocks, what stands between backticks, addresses of links, tags of templates.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import click
import django
from django.core.management import get_commands, load_command_class

from coordinator.__main__ import main as kennel

ROOT = Path(__file__).resolve().parent.parent
HEAD = r"(?:(?<=[.!?:;] )|(?<=[.!?:;]\n)|(?<=^- )|(?<=\n\n)|(?<=\*\* ))"
"""Where a sentence begins."""

PHRASES: dict[str, str] = {
    # Words
    r"tid(?:y|ied|ies|ying)": "clean (up)",
    r"reckon\w*": "calculate, count",
    r"told|tells": "reports, shows, says",
    r"(?:lies|lie|lay|lying) (?:in|on|there|under|beside)": "is stored in",
    r"stands (?:in|on|there|under|beside)|as it stands": "is stored in, is in",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:too |very )?dear(?:er|est)?": "expensive",
    r"of late": "recently",
    r"anew": "again",
    r"by (?:somebody's|whose) word|without a word": "(say which)",
    r"goes by|go by|went by|going by": "follows, uses",
    r"in hand": "in flight",
    r"reads aloud": "(say which)",
    r"of (?:its|their|our|your|one's) own making": "that it creates",
    r"bear it": "be idempotent",
    r"(?:are|is) well(?=\s*[.,;|])": "healthy",
    r"nobody answers": "connection refused",
    r"on the (?:morrow|spot)": "(say when)",
    r"at the (?:most|least)": "at most, at least",
    r"in the mean": "on average",
    r"by turns": "in turns",
    r"puts? in force|in force": "save, in effect",
    r"vouch\w*": "verify",
    r"farewell": "shutdown",
    r"hungry": "low on work",
    r"begin anew": "reset",
    r"appetite|crew|whence|thereof|hitherto|therein|wherein": "(say it plainly)",
    r"\bof late|ere long|as ever|ever more rarely": "(say it plainly)",
    # Order of words
    HEAD + r"(?:Who|Whoever|Whom|What|Whatever) (?!follows\b|to do\b|next\b)(?:(?![?.!]|\n\n).)*[.;!]": "put the subject first",
    r"(?:so|thus) (?:it|they) (?:goes|go)": "in this way",
    # Pages
    r"unleash so": "schedule opening",
    r"half of them": "50 % of workers",
    r"others will read it": "recorded in the audit log",
    r"passes says so": "confirms",
    r"no worker waits here": "no workers waiting",
    r"the same as a table": "view as table",
    r"put this message away": "dismiss",
    r"as a file": "export",
    r"tick(?:s|ed|ing)?(?: some| boxes| several)?": "select",
    r"nothing was done": "nothing changed",
    r"dequeue tasks are": "concurrency is",
    r"everything that waits": "the queue",
    r"leave it to the workers": "use the workers' default rule",
    r"poison \(first use\)": "poison (dead-letter)",
    r"look at messages": "view messages",
    r"without taking them": "peeks only",
    r"tried again from the start": "requeueing resets the attempt count",
    r"put a message": "send a message",
    r"nothing was found yet": "no message received yet",
    r"there is no such \w+ any more": "this … no longer exists",
    r"is like that": "matches",
    r"stale receipts?": "late acknowledgements",
    r"nobody leads": "no leader",
    r"stand(?:s|ing)? by": "standby",
    r"led for": "duration",
    r"it lasts|this lasts|that lasts": "current, as long as",
    r"ask(?:s|ed)? to step down": "step down (graceful)",
    r"break the lease": "force-release the lease",
    r"holds the number": "find number",
    r"issued up to": "last issued",
    r"in no grant": "unaccounted for",
    r"level with storage": "synced with storage",
    r"first sight": "first use",
    r"take it for used": "treat it as used",
    r"complete but for": "completed with failures",
    r"being undone": "rolling back",
    r"no time agreed|time agreed|agreed time": "SLA",
    r"what people did": "user actions",
    r"changes of orders": "scaling history",
    r"no agent decides": "no active scaling agent",
    r"what you leave out": "omitted fields",
    r"a day at this pace": "projected requests per day",
    r"your bill has the truth": "your Azure invoice is authoritative",
    r"who did what to which": "who did what, to what",
    r"take (?:somebody )?in(?:to a team)": "add team member",
    r"opens nothing any more": "has been revoked",
    r"do not go together": "incorrect username or password",
    r"too many wrong tries|wrong tries": "too many failed attempts",
    r"something broke": "something went wrong",
    r"is called “": "no results for",
    r"write more of the name": "refine your search",
    r"what am i looking at|the words, the": "help, glossary",
    r"hatched": "striped",
    r"wants a look": "needs attention",
    r"dashed line upwards": "dashed vertical line",
    r"what you see is old": "data is stale",
    r"figures are from before": "showing last known data",
    # Docs and command line
    r"ten lines and a fleet": "tutorial: your first fleet",
    r"what (?:it stands on|lies where)": "design principles, storage layout",
    r"second factors? (?:is|are) set up again": "users must re-enrol two-factor authentication",
    r"tiles? (?:the|1|counter)|tiling": "contiguous, without gaps or overlaps",
    r"doubled": "duplicated",
    r"better from the environment": "prefer the environment variable",
    r"are back in": "requeued",
}  # fmt: skip
"""Wrong anywhere in a text, as a pattern, and the better phrase."""

LABELS: dict[str, str] = {
    "Not yet": "Still waiting",
    "Look again": "Refresh",
    "Holding": "Closed – workers waiting",
    "Tries": "Attempts",
    "Presence": "Health",
    "Doing": "Status",
    "Up since": "Uptime",
    "Led": "Leader active",
    "Wanted": "Desired",
    "Runners": "Takeovers",
    "Time left": "ETA",
    "Claims": "Large payloads (claim check)",
    "Whose": "Owner",
    "Opens": "Scope",
    "May act as": "Role",
    "Take in": "Add",
    "Its members are": "Role",
    "Second factor": "Two-factor authentication",
    "The words": "Glossary",
    "The keys": "Keyboard shortcuts",
    "Wall": "Wallboard",
    "deep": "messages",
    "Undone": "Rolled back",
    "With failures": "Partially failed",
    "Put": "Send",
    "Destroy": "Danger zone",
    "Runway in hand": "Numbers left (time)",
    "Put in force": "Save",
    "as they happen": "Live updates",
}
"""Wrong as the whole text of a button, heading or cell."""


def _pattern(phrase: str) -> re.Pattern[str]:
    """The phrase as whole words in any case, also broken over lines; an order of words as it is."""
    if phrase.startswith(HEAD):
        return re.compile(phrase, re.S)
    anywhere = phrase.replace(" ", r"\s+")
    return re.compile(rf"\b(?:{anywhere})\b", re.I)


_FOUND = [(_pattern(phrase), better) for phrase, better in PHRASES.items()]


class Finding(NamedTuple):
    place: str
    phrase: str
    better: str

    def __str__(self) -> str:
        return f"{self.place}: {self.phrase} → {self.better}"


def blank(match: re.Match[str]) -> str:
    """Code as an ellipsis, as many lines long as it was."""
    return "…" + "\n" * match[0].count("\n")


def prose(markdown: str) -> str:
    """The text without its code and addresses, each line where it was."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2.*?$", blank, markdown, flags=re.M | re.S)
    text = re.sub(r"^(?:    |\t)(?! *[-*\d]).*$", "…", text, flags=re.M)
    text = re.sub(r"<!--.*?-->", blank, text, flags=re.S)
    text = re.sub(r"`[^`]*`", blank, text)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    return re.sub(r"https?://\S+", "…", text)


def in_text(text: str, place: Callable[[int], str]) -> Iterator[Finding]:
    """What is wrong in a text; `place` names the place of a line."""
    for pattern, better in _FOUND:
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            phrase = " ".join(match[0].split())
            yield Finding(place(line), phrase if len(phrase) < 60 else f"{phrase[:56]} …", better)


def in_file(path: Path, text: str) -> Iterator[Finding]:
    yield from in_text(text, lambda line: f"{path.relative_to(ROOT)}:{line}")


def documentation() -> Iterator[Finding]:
    """Every page, and the files beside the code."""
    for path in [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")),
        *ROOT.glob("docs/**/*.md"),
    ]:
        yield from in_file(path, prose(path.read_text()))


class Shown(HTMLParser):
    """The texts that a template shows, with their lines."""

    ATTRIBUTES = ("alt", "aria-label", "placeholder", "title", "data-confirm")

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[int, str]] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in ("script", "style", "code", "pre")
        self.texts += [
            (self.getpos()[0], value) for name, value in attrs if name in self.ATTRIBUTES and value
        ]

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style", "code", "pre")

    def handle_data(self, data: str) -> None:
        if not self.hidden and (text := data.strip()):
            self.texts.append((self.getpos()[0] + data[: data.index(text)].count("\n"), text))


def template_text(source: str) -> list[tuple[int, str]]:
    """The texts of a template's markup."""
    source = re.sub(r"{#.*?#}|{% *comment.*?endcomment *%}", blank, source, flags=re.S)
    source = re.sub(r"{%.*?%}", lambda match: "\n" * match[0].count("\n"), source, flags=re.S)
    source = re.sub(r"{{.*?}}", blank, source, flags=re.S)
    parser = Shown()
    parser.feed(source)
    return parser.texts


def templates() -> Iterator[Finding]:
    """What pages show."""
    for path in ROOT.glob("templates/**/*.html"):
        for first, text in template_text(path.read_text()):
            place = f"{path.relative_to(ROOT)}:"
            yield from in_text(text, lambda line, place=place, first=first: f"{place}{first + line - 1}")
            if text in LABELS:
                yield Finding(f"{place}{first}", text, LABELS[text])


def helps() -> Iterator[tuple[str, str]]:
    """The help of each command by its name: those of `kennel`, then our own of manage.py."""

    def of(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
        context = click.Context(command, info_name=path, max_content_width=200)
        yield f"{path} --help", command.get_help(context)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                if below := command.get_command(context, name):
                    yield from of(below, f"{path} {name}")

    yield from of(kennel, "kennel")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    for name, package in sorted(get_commands().items()):
        if package == "dashboard":
            command = load_command_class("dashboard", name)
            yield f"manage.py {name} --help", command.create_parser("manage.py", name).format_help()


def command_lines() -> Iterator[Finding]:
    """What commands say of themselves."""
    for name, text in helps():
        yield from in_text(text, lambda line, name=name: f"{name}:{line}")


SAID_BY = {
    "ActionFailed", "Asked", "Attention", "CommandError", "Denied", "Error", "Headline", "Refusal", "act", "act_on_each", "confirm",
    "echo", "error", "exception", "info", "success", "warning", "write",
}  # fmt: skip
"""Functions and classes whose texts people read: on pages, in answers of the API, in the terminal and in logs."""


def said(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts of a module that people read, with their lines: docstrings, which are the reference, and errors too."""
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call() as call):
                yield from texts_of(call)
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in SAID_BY:
                yield from texts_of(node)
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, inspect.cleandoc(text)


def texts_of(call: ast.Call) -> Iterator[tuple[int, str]]:
    """The texts in the arguments of a call; what is put into them is an ellipsis."""
    nodes: list[ast.AST] = [*call.args, *(each.value for each in call.keywords)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif not isinstance(node, ast.Call):
            nodes += ast.iter_child_nodes(node)


def code() -> Iterator[Finding]:
    """What the dashboard and the library say while they run: toasts, answers of the API, errors, lines of logs."""
    for path in [*ROOT.glob("dashboard/**/*.py"), *ROOT.glob("coordinator/**/*.py")]:
        for first, text in sorted(set(said(ast.parse(path.read_text())))):
            place = f"{path.relative_to(ROOT)}:{first}"
            yield from in_text(prose(text), lambda line, place=place: place)


CONCEPTS = re.compile(
    r"(?:^|_)(?:appetite|crew|stock|tid(?:y|ied|ying)|told|met|reckon\w*|several|doors?|vouch\w*)(?:_|$)",
    re.I,
)


def words_of(name: str) -> str:
    """A name in CamelCase as words_with_lines_between."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a module gives to classes, functions, arguments, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case (
                ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield node.lineno, name


def identifiers() -> Iterator[Finding]:
    """What the dashboard and the library call things."""
    for path in [*ROOT.glob("dashboard/**/*.py"), *ROOT.glob("coordinator/**/*.py")]:
        for line, name in names(ast.parse(path.read_text())):
            if CONCEPTS.search(words_of(name)):
                yield Finding(f"{path.relative_to(ROOT)}:{line}", name, "say what it is")


PARTS = {
    "docs": documentation,
    "templates": templates,
    "help": command_lines,
    "code": code,
    "names": identifiers,
}


def main(parts: list[str]) -> int:
    """Print what is wrong in these parts (default: all); 0 if nothing is."""
    found = [finding for part in parts or PARTS for finding in PARTS[part]()]
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
