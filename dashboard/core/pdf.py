"""Plain PDF files: headings, sentences and tables on A4, in the fonts that every reader has.

Letters beyond Western European ones are drawn as question marks: those fonts have no others. Figures are as wide as each
other, and the title and language are in the file, for readers that read it out.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pydyf

WIDTH, HEIGHT = 595, 842
LEFT, TOP, BOTTOM = 50, 60, 60
TEXT, BOLD, FIGURES = ("F1", 10.0, 14), ("F2", 13.0, 24), ("F3", 8.0, 11)
LETTER = 0.6
"""Width of a figure, of the size of its font."""
FONTS = {"F1": "Helvetica", "F2": "Helvetica-Bold", "F3": "Courier"}

Style = tuple[str, float, int]
"""Font, size, and height of a line, in points."""


class Sheet:
    """A document that is written from top to bottom."""

    def __init__(self, title: str) -> None:
        self._pdf: Any = pydyf.PDF()
        self._pdf.info["Title"] = pydyf.String(title)
        self._pdf.catalog["Lang"] = pydyf.String("en")
        fonts = pydyf.Dictionary()
        for name, base in FONTS.items():
            font = pydyf.Dictionary(
                {
                    "Type": "/Font",
                    "Subtype": "/Type1",
                    "BaseFont": f"/{base}",
                    "Encoding": "/WinAnsiEncoding",
                }
            )
            self._pdf.add_object(font)
            fonts[name] = font.reference
        self._fonts = fonts
        self._pages = 0
        self._new_page()
        self.heading(title)

    def heading(self, text: str) -> None:
        """A line of its own, in bold."""
        self._line(text, BOLD)

    def text(self, text: str, *, width: int = 92) -> None:
        """A paragraph, broken between words; a longer word is cut."""
        line = ""
        for word in text.split():
            pieces = [word[start : start + width] for start in range(0, len(word), width)]
            for piece in pieces:
                if line and len(line) + 1 + len(piece) > width:
                    self._line(line, TEXT)
                    line = ""
                line = f"{line} {piece}" if line else piece
        self._line(line, TEXT)
        self._y -= 4

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as they need; the first is left, all others right. The head is repeated on each page."""
        widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(width) if n == 0 else cell.rjust(width)
                for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in (head, *rows)
        ]
        font, size, height = FIGURES
        fits = (WIDTH - 2 * LEFT) / (LETTER * len(lines[0]))
        style = (font, min(size, fits), height)
        self._line(lines[0], style)
        self._rule(len(lines[0]) * LETTER * style[1])
        for line in lines[1:]:
            self._line(line, style, head=lines[0])
        self._y -= 8

    def data(self) -> bytes:
        """The file."""
        output = io.BytesIO()
        self._pdf.write(output)
        return output.getvalue()

    def _new_page(self) -> None:
        self._stream: Any = pydyf.Stream(compress=True)
        self._pdf.add_object(self._stream)
        self._pages += 1
        page = {
            "Type": "/Page",
            "Parent": self._pdf.pages.reference,
            "MediaBox": pydyf.Array([0, 0, WIDTH, HEIGHT]),
            "Contents": self._stream.reference,
            "Resources": pydyf.Dictionary({"Font": self._fonts}),
        }
        self._pdf.add_page(pydyf.Dictionary(page))
        self._y = float(HEIGHT - TOP)
        self._draw(str(self._pages), WIDTH - LEFT, 30, ("F1", 8.0, 10))

    def _line(self, text: str, style: Style, *, head: str = "") -> None:
        if self._y - style[2] < BOTTOM:
            self._new_page()
            if head:
                self._line(head, style)
                self._rule(len(head) * LETTER * style[1])
        self._y -= style[2]
        self._draw(text, LEFT, self._y, style)

    def _draw(self, text: str, x: float, y: float, style: Style) -> None:
        stream = self._stream
        stream.begin_text()
        stream.set_font_size(style[0], style[1])
        stream.set_text_matrix(1, 0, 0, 1, x, round(y, 1))
        stream.show_text_string(text.encode("cp1252", "replace"))
        stream.end_text()

    def _rule(self, width: float) -> None:
        self._stream.set_line_width(0.5)
        self._stream.move_to(LEFT, round(self._y - 3, 1))
        self._stream.line_to(round(LEFT + width, 1), round(self._y - 3, 1))
        self._stream.stroke()
        self._y -= 2
