"""The documents as tests read them: pages, their blocks of code, their links, the commands in their consoles."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BESIDE = [*sorted((ROOT / "jobs").rglob("*.md")), ROOT / "slurm/README.md", ROOT / "data/README.md"]
PAGES = [*DOCUMENTS, *BESIDE, ROOT / "benchmarks/rivals/README.md", ROOT / "CHANGELOG.md"]
_FENCE = re.compile(
    r"^ *```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"\]\((?P<path>[^)\s:#]*)(?:#(?P<anchor>[^)\s]*))?\)")
_SEPARATORS = {";", "|", "&&"}


class Block(NamedTuple):
    """A block of code."""

    language: str
    title: str | None  # the file that a reader is to write it to
    text: str


def name_of(page: Path) -> str:
    """How a page is told in the name of a test."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of code of a page in these languages, in order; of all without any."""
    found = [Block(*match.groups()) for match in _FENCE.finditer(page.read_text(encoding="utf-8"))]
    return [block for block in found if not languages or block.language in languages]


def links(page: Path) -> Iterator[tuple[str, str | None]]:
    """(path, anchor) of every relative link of a page; an empty path is the page itself."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in _LINK.finditer(text):
        yield match["path"], match["anchor"]


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    titles = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles)
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a console, each as its words; what starts ranks stands before."""
    for line in block.text.replace("\\\n", " ").splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars=";|&")
        reader.whitespace_split, reader.commenters = True, "#"
        words: list[str] = []
        for word in reader:
            if word in _SEPARATORS:
                yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words


def sentences(page: Path) -> Iterator[list[str]]:
    """The arguments of every mpifed that a page names in its text, in backticks."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in re.finditer(r"`mpifed ([^`]+)`", text):
        yield match[1].split()


def launched(words: list[str]) -> tuple[int, list[str]] | None:
    """(ranks, arguments) of a command that starts mpifed, 0 ranks where it does so directly; None of any other."""
    ranks = 0
    if words[:2] == ["mpirun", "-n"]:
        ranks, words = int(words[2]), words[3:]
    return (ranks, words[1:]) if words[:1] == ["mpifed"] else None
