"""Text that comes from outside and becomes a name, a line of a script or of a message; and what is printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from decimal import ROUND_CEILING, Context
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import TextIO

_WHOLE = "next: "  # a line with a command, which is copied whole: a terminal wraps it by itself
_NARROWEST = 20  # characters of a terminal
_NAME_BYTES = 200  # of 255 that file systems have: the names of files beside a run's folder begin with its own
_SHOWN = 200
_ALIKE = 0.65  # of 1: how alike two names are, for the first to count as a misspelling of the second
# what other libraries call a key
SYNONYMS = {
    "lr": "learning_rate", "eta": "learning_rate", "step_size": "learning_rate", "epochs": "local_epochs",
    "local_ep": "local_epochs", "steps": "local_steps", "num_steps": "local_steps", "local_bs": "batch_size",
    "n_rounds": "rounds", "num_rounds": "rounds", "global_rounds": "rounds", "penalty": "l2", "reg": "l2",
    "frac": "clients_per_round", "num_clients": "clients_per_round", "intercept": "bias", "fit_intercept": "bias",
    "hidden_size": "hidden", "hidden_layer_sizes": "hidden", "random_state": "seed",
    "optimizer": "client_optimizer", "weight-decay": "weight_decay", "schedule": "name",
}  # fmt: skip


def counted(count: int, what: str) -> str:
    """'1 round', '3 rounds'."""
    return f"{count} {what}{'s' * (count != 1)}"


def listed(names: Iterable[object], most: int = 20) -> str:
    """Names separated by commas; of more than `most`, the first, and their number."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f", ... ({len(texts)} in all)" if len(texts) > most else "")


def wrong_line(text: str) -> str | None:
    """Why a text is no part of a line: control characters end it, or hide what stands there; None if it is fine."""
    for at, character in enumerate(text):
        if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
            return f"has the control character {character!a} at {at + 1}; take it out"
        if unicodedata.category(character) == "Cs":
            return "is not UTF-8; take other characters"
    return None


def wrong_name(text: str) -> str | None:
    """Why a text cannot be the name of one file or folder; None if it can."""
    if not text.strip() or text in (".", "..") or "/" in text or text.startswith("-"):
        return "must be the name of one folder: not empty, not . or .., without / and not beginning with -"
    if (nbytes := len(text.encode("utf-8", "surrogatepass"))) > _NAME_BYTES:
        return f"has {nbytes} bytes, and may have {_NAME_BYTES}"
    return wrong_line(text)


def shown(text: str, most: int = _SHOWN) -> str:
    """A text in one line of printable characters, truncated to `most` characters."""
    plain = shown_lines(text[: most + 1].replace("\n", "\\n"))
    return plain if len(text) <= most else f"{plain[:most]}..."


def shown_lines(text: object) -> str:
    """A text in as many lines as it has, without what a terminal would obey: it may name files of strangers."""
    return "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in str(text))


def command_line(*words: object) -> str:
    """A command as a shell reads it, for a person to copy: words with spaces stand in quotes."""
    return shlex.join(map(str, words))


def leads_to(path: Path) -> str:
    """Where a relative path leads, in brackets: it depends on the folder in which a command is started."""
    return "" if path.is_absolute() else f" ({path.absolute()}, relative to {Path.cwd()})"


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


def rounded_up(bound: float) -> float:
    """An upper bound with six digits."""
    return float(Context(prec=6, rounding=ROUND_CEILING).create_decimal(repr(float(bound))))


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean "batch_size"?', or empty where no known word is similar; of known ones, those that are public."""
    words = [other for other in known if not other.startswith("_")]
    plain = {_plain(other): other for other in reversed(words)}
    synonym = SYNONYMS.get(word.lower())
    if synonym in words:
        return f'; did you mean "{synonym}"?'
    from difflib import get_close_matches  # for messages alone

    near = get_close_matches(_plain(word), list(plain), n=1, cutoff=_ALIKE)
    return f'; did you mean "{plain[near[0]]}"?' if near else ""


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())
