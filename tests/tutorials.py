"""The tutorials, as a reader types them: files are written, commands run in order, in an empty folder.

Where a page submits to Slurm, the job is run here instead; what only a cluster has (srun, pip), or what kills a run, is
left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT, blocks, commands, launched

LEFT_OUT = ("doctor", "explain")  # what this machine is like; nothing that later commands need
WITHOUT_SLURM = str(Path(sys.executable).parent)
Play = Callable[..., Path]


@pytest.fixture
def play(launch: Callable[..., Any], tmp_path: Path) -> Play:
    """play(name): the folder in which a tutorial has been followed to its end; its runs with more settings, by job."""
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")

    def mpifed(ranks: int, arguments: list[str], more: dict[str, str]) -> None:
        if arguments[0] in LEFT_OUT:
            return
        if arguments[0] == "submit" and "--dry-run" not in arguments:
            if "--array" in arguments:
                return
            arguments = ["run", arguments[1]]
        if arguments[0] == "run" and arguments[1] in more:
            arguments = [*arguments, "--set", more[arguments[1]]]
        env = {"PATH": WITHOUT_SLURM} if arguments[0] == "submit" else {}
        # the bits are the same on any number of ranks; without a launcher, in this process
        ended = launch(min(ranks, 2) or None, *arguments, cwd=tmp_path, env=env)
        assert ended.code == 0, f"mpifed {' '.join(arguments)}\n{ended.text}"
        assert "Traceback" not in ended.text

    def play(name: str, more: dict[str, str] | None = None) -> Path:
        for block in blocks(ROOT / "docs" / "tutorials" / f"{name}.md"):
            if block.title:
                (tmp_path / block.title).write_text(block.text, encoding="utf-8")
            if block.language == "python":
                ended = launch(0, program=(str(block.title),), cwd=tmp_path, env={"MPLBACKEND": "agg"})
                assert ended.code == 0, ended.text
            for words in commands(block) if block.language == "console" else ():
                if (of_mpifed := launched(words)) is not None:
                    mpifed(*of_mpifed, more or {})
        return tmp_path

    return play
