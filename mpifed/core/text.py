"""Text that comes from outside, and becomes a name of a file, a line of a script or of a message."""

from __future__ import annotations

import shlex
import unicodedata
from pathlib import Path

_NAME_BYTES = 200  # of 255 that file systems have: the names of files beside a run's folder begin with its own
_SHOWN = 200


def counted(count: int, what: str) -> str:
    """'1 round', '3 rounds'."""
    return f"{count} {what}{'s' * (count != 1)}"


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
