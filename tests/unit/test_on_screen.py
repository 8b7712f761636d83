"""What a terminal of 80 characters shows of each command, and that a pipe gets it unbroken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner
from jobs_in_python import as_in_a_file, job_table

from mpifed.cli import main
from mpifed.core.text import fitted, prose, table_lines
from mpifed.explain.entries import entries
from mpifed.run.progress import Bar

WIDTH = 80
PRIVATE = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7, "trust": "distributed"}


def table(data: Path, **changes: Any) -> dict[str, Any]:
    return as_in_a_file(job_table(data, **{"name": "shown", "rounds": 2, "model": {"name": "softmax"}} | changes))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, digits: Path, patches: Path) -> Path:
    """A folder with jobs, runs and a sweep."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "data").symlink_to(digits)
    (folder / "cells").symlink_to(patches)
    ssca = {"name": "ssca", "batch_size": 4}
    limits = [{"name": "loss", "classes": [0, 1, 2], "limit": 1.2, "margin": 0.1}, {"name": "norm", "limit": 9.0}]
    jobs = {
        "masked": table(Path("data"), aggregation={"security": "masked"}, privacy=PRIVATE),
        "limits": table(Path("data"), algorithm=ssca, constraint=limits, simulated_network={"name": "lte"}),
        "cells": table(
            Path("cells"), algorithm={"name": "hyfdca"}, model={"name": "hinge", "l2": 1e-3}, name="a-" * 40 + "name",
            aggregation={"security": "masked"},
        ),
        "sweep": table(Path("data"), sweep={"algorithm.batch_size": [4, 5], "seeds": 1}),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, job in jobs.items():
            (folder / f"{name}.toml").write_text(tomli_w.dumps(job))
            ended = CliRunner().invoke(main, ["run", f"{name}.toml", "--out", f"runs/{name}", "--progress", "none"])
            assert ended.exit_code in (0, 5), ended.output
    (folder / "runs/limits/failure.txt").write_text("mpifed: error: " + "a long reason " * 20)
    (folder / "runs/sweep/point-0001/run.json").unlink()
    return folder


COMMANDS = [
    *(("show", f"runs/{name}") for name in ("masked", "limits", "cells")),
    *(("check", f"{name}.toml") for name in ("masked", "limits", "cells", "sweep")),
    ("status", "runs"), ("status", "runs/sweep"), ("status", "runs/masked", "runs/sweep"),
    ("explain", "commands"), ("explain", "findings"), ("explain", "history"), ("explain", "ssca"),
    ("data", "digits", "--split", "rows", "--clients", "4", "--out", "made"), ("new", "--help"), ("--help",),
]  # fmt: skip


def shown(place: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], terminal: bool) -> str:
    monkeypatch.chdir(place)
    if command[0] == "data":
        command = (*command, "--force")
    with monkeypatch.context() as patch:
        if terminal:
            patch.setenv("COLUMNS", str(WIDTH))
            patch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: True)
        ended = CliRunner().invoke(main, list(command))
    assert ended.exit_code in (0, 7), ended.output
    return ended.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_lines_fit(command: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(place, monkeypatch, command, terminal=True)
    lines = [line for line in text.splitlines() if not line.startswith("next: ")]
    wide = [line for line in lines if len(line) > WIDTH and len(line.split()) > 1]  # one long word stays whole
    assert not wide, "\n".join(wide)
    assert len(lines) >= 5


@pytest.mark.parametrize("command", [("show", "runs/masked"), ("status", "runs/sweep"), ("explain", "ssca")])
def test_words_are_those_of_a_pipe(command: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but breaks differs, and a pipe gets a row in a line."""
    piped, terminal = (shown(place, monkeypatch, command, terminal) for terminal in (False, True))
    assert max(map(len, piped.splitlines())) > WIDTH
    if command[0] != "status":
        assert piped.split() == terminal.split()


def test_fitted() -> None:
    line = f"{'label':10} one two three four five"
    assert fitted(line, 25).splitlines() == [f"{'label':10} one two three", f"{'':11}four five"]
    assert fitted(f"next: {'x ' * 50}", 20) == f"next: {'x ' * 50}"  # is copied whole
    assert fitted(f"label      {'x' * 64}", 70).splitlines() == ["label", f"    {'x' * 64}"]
    assert fitted("a" * 100, 20) == "a" * 100
    assert fitted("", 20) == "" and fitted("a\n\nb", 20) == "a\n\nb"
    for entry in entries():
        for width in (20, 40, 80):
            assert fitted(entry.text, width).split() == prose(entry.text, width).split() == entry.text.split()


def test_tables_that_do_not_fit_are_lists() -> None:
    rows = [["run", "state", "round"], ["a", "done", "100/100"], ["b", "", "7/100"]]
    assert list(table_lines(rows, (2,))) == ["run  state    round", "a    done   100/100", "b             7/100"]
    assert list(table_lines(rows, (2,), 19)) == list(table_lines(rows, (2,)))
    assert list(table_lines(rows, (2,), 18)) == [
        "run a",
        "  state  done",
        "  round  100/100",
        "run b",
        "  round  7/100",
    ]
    rows = [["point", "state"], ["point-0  seed=1", "done"]]
    assert list(table_lines(rows, (), 15)) == ["point     state", "point-0   done", "  seed=1"]
    assert list(table_lines(rows, (), 14)) == ["point point-0", "  seed=1", "  state  done"]
    assert not re.search(" $", "\n".join(table_lines(rows)), re.MULTILINE)


@pytest.mark.parametrize("width", [200, 80, 60, 40, 30, 20, 14])
def test_a_bar_never_cuts_its_count(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    bar = Bar()
    bar.start(0, 100_000, "t")
    bar.row({"round": 12_345, "train_loss": 0.123, "test_accuracy": 0.9, "constraint_1": 0.5, "constraint_2": 0.25})
    bar.end()
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in capsys.readouterr().out.splitlines()]
    (shown,) = {line for line in lines if "12345/" in line}
    assert " 12345/100000 " in shown and len(shown) <= width
    assert ("constraints 0.5000 0.2500" in shown) == (width == 200)
    assert ("rounds" in shown) == (width >= 40)
