"""The check of words finds a phrase wherever a reader would, and leaves code alone."""

from __future__ import annotations

import ast

import pytest

from scripts import words


def found(markdown: str) -> list[tuple[str, str]]:
    return [(finding.place, finding.phrase) for finding in words.in_text(words.prose(markdown), str)]


def test_a_phrase_is_found_with_its_line_across_a_line_break_in_any_case():
    assert found("# Page\n\nMessages are In\nhand now.\n") == [("3", "In hand")]


@pytest.mark.parametrize(
    "text",
    [
        "```text\nin hand\n```\n",
        "    reckon --in hand\n",
        "Use `in hand`.\n",
        "[x](mended.md)\n",
        "<!-- tidy -->\n",
    ],
)
def test_code_and_addresses_are_left_alone(text: str):
    assert found(f"Text.\n\n{text}") == []


def test_a_sentence_that_begins_with_its_object_is_found_and_a_question_is_not():
    text = "It ends. Whoever holds it goes on. What do you want? What to do is here.\n"
    assert [phrase for _, phrase in found(text)] == ["Whoever holds it goes on."]


def test_a_template_shows_its_texts_attributes_and_headings_but_no_tags():
    source = (
        '{% if told %}<h2 title="tidy">\nTake in</h2>{# reckon #}{% endif %}<script>mend()</script>{{ told }}'
    )
    assert words.template_text(source) == [(1, "tidy"), (2, "Take in"), (2, "…"), (2, "…")]


def test_every_command_shows_its_help_to_the_check():
    names = [name for name, _ in words.helps()]
    assert {"kennel --help", "kennel queue put --help", "manage.py demo --help"} <= set(names)


def test_the_documentation_has_none():
    assert [str(finding) for finding in words.documentation()] == []


def test_the_code_says_what_it_documents_raises_shows_and_logs_and_not_what_it_compares():
    source = (
        "def f(name):\n"
        '    """tidy"""\n'
        '    if name == "tidy":\n'
        '        raise ValueError(f"{name} told us")\n'
        '    messages.success(request, "Tidied.")\n'
        '    log.info("in hand: %s", kinds["tidy"])\n'
    )
    texts = sorted(words.said(ast.parse(source)))
    assert texts == [(2, "tidy"), (4, "… told us"), (5, "Tidied."), (6, "in hand: %s"), (6, "tidy")]


def test_no_class_function_or_variable_has_a_private_word() -> None:
    assert [str(finding) for finding in words.identifiers()] == []
    source = (
        "class TheDoor:\n    def _told(self, crew):\n        self.several_rows = stocking = doormat = 1\n"
    )
    bad = [name for _, name in words.names(ast.parse(source)) if words.CONCEPTS.search(words.words_of(name))]
    assert sorted(bad) == ["TheDoor", "_told", "crew", "several_rows"]
