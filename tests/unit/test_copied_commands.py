"""Commands that are printed can be copied, whatever the folders are called."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from written_files import points_of

NAME = "a b'c"
Launch = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of that name, from above which commands are called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm
    Path(NAME).mkdir()
    return Path(NAME)


def words_after(text: str, start: str) -> list[str]:
    """The words, as a shell reads them, of a command that begins so and ends at a backtick or with its line."""
    (command,) = re.findall(rf"{re.escape(start)}[^`\n]*", text)
    return shlex.split(command)


def written(path: Path, data: str) -> Path:
    path.write_text(
        f'name = "t"\nrounds = 3\ndata.path = "{data}"\nmodel.name = "softmax"\n'
        'algorithm = {name = "fedavg", batch_size = 4}\nclient_optimizer = {learning_rate = 0.1}\n'
    )
    return path


@pytest.mark.parametrize("sweep", [(), ("--set", "sweep.seeds=2"), ("--set", "sweep.seeds=2", "--point", "1")])
def test_what_resumes(sweep: tuple[str, ...], folder: Path, digits: Path, launch: Launch) -> None:
    """The command that is printed, as it is, goes on with the whole."""
    out = str(folder / "run 1")
    job = str(written(folder / "job.toml", str(digits)))
    words = ["mpifed", "run", job, "--set", "rounds=4", *sweep[:2], "--out", out, *sweep[2:]]
    ended = launch(None, *words[1:], "--max-hours", 0)
    assert ended.code == 75, ended.text
    assert words_after(ended.err, "mpifed run") == [*words[: len(words) - len(sweep[2:])], "--resume", *sweep[2:]]
    assert launch(None, *words[1:], "--resume").code == 0
    ended = {path.parent for path in Path(out).glob("**/model.safetensors")}
    assert ended == set(points_of(Path(out))[len(sweep) // 2 - 1 :] if sweep else [Path(out)])
