"""The documents as tests read them: pages, their blocks of code, the commands in their consoles; tutorials played."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *NOTEBOOKS]
BESIDE = [*sorted((ROOT / "jobs").rglob("*.md")), ROOT / "slurm/README.md", ROOT / "data/README.md"]
PAGES = [*DOCUMENTS, *BESIDE, ROOT / "CHANGELOG.md"]
FENCE = re.compile(
    r"^ *```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE
)
SEPARATORS = {";", "|", "&&", "||"}
Play = Callable[..., Path]


class Block(NamedTuple):
    """A block of code."""

    language: str
    title: str | None  # the file that a reader is to write it to
    text: str


def text_of(page: Path) -> str:
    """A page in Markdown, a notebook as the site shows it."""
    if page.suffix == ".md":
        return page.read_text(encoding="utf-8")
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        from notebooks import as_markdown
    finally:
        sys.path.pop(0)
    return as_markdown(page)


def name_of(page: Path) -> str:
    """How a page is told in the name of a test."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of code of a page in these languages, in order; of all without any."""
    found = [Block(*match.groups()) for match in FENCE.finditer(text_of(page))]
    return [block for block in found if not languages or block.language in languages]


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a console, each as its words; what starts ranks stands before."""
    for line in block.text.replace("\\\n", " ").splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars=";|&")
        reader.whitespace_split, reader.commenters = True, "#"
        words: list[str] = []
        for word in [*reader, ";"]:
            if word not in SEPARATORS:
                words.append(word)
            elif words:
                yield words
                words = []


def launched(words: list[str]) -> tuple[int, list[str]] | None:
    """(ranks, arguments) of a command that starts mpifed, 0 ranks where it does so directly; None of any other."""
    ranks = 0
    if words[:2] == ["mpirun", "-n"]:
        ranks, words = int(words[2]), words[3:]
    return (ranks, words[1:]) if words[:1] == ["mpifed"] else None


@pytest.fixture
def play(launch: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """play(name): the folder in which a tutorial has been followed to its end; its runs with more settings, by job.

    A notebook is executed, in a kernel of its own; a cell that fails raises.
    Where a page submits to Slurm, the job is run here instead; what only a cluster has (srun, pip), or what kills a
    run, is left out.
    """
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")

    def mpifed(ranks: int, arguments: list[str], more: dict[str, str]) -> None:
        if arguments[0] in ("doctor", "explain") or {"submit", "--array"} <= {*arguments}:
            return
        if arguments[0] == "submit" and "--dry-run" not in arguments:
            arguments = ["run", arguments[1]]
        if arguments[0] == "run" and arguments[1] in more:
            arguments = [*arguments, "--set", more[arguments[1]]]
        env = {"PATH": str(Path(sys.executable).parent)} if arguments[0] == "submit" else {}  # without Slurm
        # the bits are the same on any number of ranks; without a launcher, in this process
        ended = launch(min(ranks, 2) or None, *arguments, cwd=tmp_path, env=env)
        assert ended.code == 0 and "Traceback" not in ended.text, f"mpifed {' '.join(arguments)}\n{ended.text}"

    def play(name: str, more: dict[str, str] | None = None) -> Path:
        page = ROOT / "docs" / "tutorials" / f"{name}.md"
        if not page.exists():
            monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
            monkeypatch.delenv("MPLBACKEND", raising=False)
            notebook = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
            NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
            return tmp_path
        for block in blocks(page):
            if block.title:
                (tmp_path / block.title).write_text(block.text, encoding="utf-8")
            for words in commands(block) if block.language == "console" else ():
                if (of_mpifed := launched(words)) is not None:
                    mpifed(*of_mpifed, more or {})
        return tmp_path

    return play
