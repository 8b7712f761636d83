"""What is printed: lines at once, and texts as wide as the terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import suppress
from itertools import groupby
from textwrap import wrap
from typing import TextIO

_WHOLE = "next: "  # a line with a command, which is copied whole: a terminal wraps it by itself
_NARROWEST = 20  # characters of a terminal


def say(*lines: object, file: TextIO | None = None) -> None:
    """Print lines at once; where nobody reads them any more, as in `mpifed run JOB | head`, they are dropped."""
    stream = file or sys.stdout
    try:
        print(*lines, sep="\n", file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # else Python tries again when it ends


def say_at_end(text: str) -> None:
    """Print a last message, an error, if that is possible: where output goes to a full disk, the exit code must do."""
    for stream, output in ((sys.stdout, ""), (sys.stderr, f"{text}\n")):
        try:
            stream.write(output)
            stream.flush()
        except (AttributeError, TypeError, ValueError):  # a class of the user's has closed or replaced it
            with suppress(OSError):
                os.write(2, output.encode(errors="backslashreplace"))
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or Python tries again when it ends


def screen_width() -> int | None:
    """The characters of a line on standard output; None where that is no terminal, and lines are as long as need be."""
    return max(_NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def on_screen(text: str) -> str:
    """A text for standard output: at a terminal its long lines are broken, elsewhere it is as it is."""
    width = screen_width()
    return text if width is None else fitted(text, width)


def fitted(text: str, width: int) -> str:
    """A text whose lines have at most `width` characters, the rest of a line below what stands after its label.

    Words that are longer, such as paths, stay whole, and so does a line with a command, so that both can be copied.
    """
    lines = []
    for line in text.split("\n"):
        label = re.match(r" *(?:\S+(?: \S+)* {2,})?", line)
        assert label is not None
        indent = " " * (label.end() if label.end() <= width // 2 else 4)
        if line.startswith(_WHOLE):
            lines.append(line)
            continue
        lines += wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
            replace_whitespace=False,
        ) or [""]  # fmt: skip
    return "\n".join(lines)


def prose(text: str, width: int) -> str:
    """A text whose paragraphs have lines of at most `width` characters, and whose other lines are `fitted`."""
    parts = []
    for is_paragraph, lines in groupby(text.split("\n"), lambda line: re.match(r"[^\W\d_]|[`(]", line) is not None):
        if is_paragraph:
            parts += wrap(" ".join(lines), width, break_long_words=False, break_on_hyphens=False)
        else:
            parts.append(fitted("\n".join(lines), width))
    return "\n".join(parts)
