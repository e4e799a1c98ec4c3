"""What is printed: plain lines and tables for people, JSON for programs.

One rule: nothing that a user, a job or a scheduler wrote reaches a terminal as anything but text: control characters
are shown escaped, and no text is ever read as markup. Standard output carries the answer, standard error the rest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.table import Table

UNBOUNDED = 100_000
"""The width of what is not a terminal: a line that is read by a program is never folded."""


def clean(text: object) -> str:
    """Text as it may be shown: what cannot be printed is escaped, line ends and half characters included.

    >>> clean("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def json_text(value: object) -> str:
    """A value as JSON in ASCII; the record's own values are written as they are stored."""
    import msgspec

    plain = msgspec.to_builtins(value, order="sorted")
    return json.dumps(plain, indent=2, ensure_ascii=True).replace("\x7f", "\\u007f")


class Screen:
    """Where one command prints."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, value: object, lines: Iterable[str] = ()) -> None:
        """The answer: the value in JSON, or its lines."""
        if self.as_json:
            sys.stdout.write(json_text(value) + "\n")
        else:
            for line in lines:
                self.line(line)

    def line(self, text: str) -> None:
        """One line of the answer for people; not in JSON, where standard output holds the JSON alone."""
        if not self.as_json:
            sys.stdout.write(clean(text) + "\n")

    def flush(self) -> None:
        """Show what was printed so far: the next line may take its time."""
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """One line beside the answer: progress and advice."""
        sys.stdout.flush()
        sys.stderr.write(clean(text) + "\n")
        sys.stderr.flush()

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows for people; a column in which nothing stands is left out."""
        texts = [[clean(cell) for cell in row] for row in rows]
        kept = [i for i in range(len(heads)) if any(row[i] for row in texts)]
        if self.as_json or not kept:
            return
        _print(sys.stdout, _table([heads[i] for i in kept], [[row[i] for i in kept] for row in texts]))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(Text(head.upper(), style="bold"), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _print(stream: TextIO, table: Table) -> None:
    from rich.console import Console

    console = Console(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(file=stream, markup=False, highlight=False, emoji=False, width=UNBOUNDED)
    with console.capture() as captured:
        console.print(table)
    # Padding to the right helps nobody, and folds lines on a terminal that was made narrower.
    stream.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def local_time(at: datetime, *, date: bool = True) -> str:
    """A time on this machine's clock, as a person reads it."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S")


def plural(count: int, one: str, many: str = "") -> str:
    """`1 run`, `3 runs`."""
    return f"{count} {one if count == 1 else many or one + 's'}"
