"""`mpifed show RUN --follow`: rows as they come, until the run ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from written_files import write_json

from mpifed.cli import main
from mpifed.core.errors import DataError
from mpifed.run import follow
from mpifed.run.lock import this_process

HEADER = "round,elapsed_s,train_loss,test_accuracy,constraint_1,up_bytes,down_bytes,epsilon\n"


class Steps:
    """What happens to a run's folder while `follow` waits: a step each time, and no clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: Any) -> None:
        self.steps, self.now, self.waits = list(steps), 0.0, 0
        monkeypatch.setattr(follow.time, "sleep", self.wait)
        monkeypatch.setattr(follow.time, "monotonic", lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waits += 1
        assert seconds >= 0.1 and self.waits < 50
        if self.steps and (step := self.steps.pop(0)) is not None:
            step()


def write(path: Path, text: str, mode: str = "w") -> Any:
    def step() -> None:
        path.parent.mkdir(exist_ok=True)
        with open(path, mode) as file:
            file.write(text)

    return step


def goes_on(run: Path, code: int | None = None) -> Any:
    def step() -> None:
        run.mkdir(exist_ok=True)
        write_json(run / "run.json", {"exit": code, "rounds": 4})
        if code is None:
            (run / "lock").write_text(json.dumps(this_process()))
        else:
            (run / "lock").unlink(missing_ok=True)

    return step


def told(run: Path) -> tuple[int, list[str], str]:
    ended = CliRunner().invoke(main, ["show", str(run), "--follow"])
    return ended.exit_code, ended.stdout.splitlines(), ended.stderr


def test_from_before_a_run_begins_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows once each, though it is killed, goes on after a checkpoint, and measures rows again."""
    run, history = tmp_path / "run", tmp_path / "run/history.csv"

    def replaced() -> None:
        (tmp_path / "new").write_text(HEADER + "0,0.0,2.5,0.1,0.5,0,0,\n")
        (tmp_path / "new").replace(history)

    Steps(
        monkeypatch, None, goes_on(run), write(history, HEADER + "0,0.0,2.5,0.1,0.5,0,0,\n2,1.0,1.5"),
        write(history, ",0.25,0.4,9,9,\n", "a"), None, replaced, write(history, "2,1.0,1.5,0.25,0.4,9,9,\n", "a"),
        write(history, "4,12.345,0.5,,0.3,9,9,\n", "a"), goes_on(run, 5),
    )  # fmt: skip
    assert told(run) == (
        0,
        [
            "     round     seconds  training loss  test accuracy  constraint 1",
            "         0        0.00         2.5000         10.00%        0.5000",
            "         2        1.00         1.5000         25.00%        0.4000",
            "         4       12.35         0.5000                       0.3000",
            "a limit is not met, or a certificate asked for not reached (exit 5)",
        ],
        f"mpifed: note: {run}: waiting for the run to begin\n",
    )


def test_a_finished_run_is_shown_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    goes_on(run, 0)()
    write(run / "history.csv", HEADER + "0,0.0,2.5,,,0,0,\n")()
    steps = Steps(monkeypatch)
    code, lines, _ = told(run)
    assert (code, lines[0].split(), lines[1].split()) == (
        0,
        ["round", "seconds", "training", "loss"],
        ["0", "0.00", "2.5000"],
    )
    assert lines[2:] == ["done (exit 0)"] and steps.waits == 0


def test_how_else_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed; failed before its first round; interrupted, with a process that goes on at that moment; by Ctrl-C."""
    run = tmp_path / "run"
    goes_on(run)()
    (run / "lock").write_text(json.dumps(this_process() | {"started": 1}))  # whose process has ended
    steps = Steps(monkeypatch)
    assert told(run)[1] == ["killed, after round 0 at least; go on with --resume"] and steps.now > 2
    goes_on(run, 75)()
    (run / "lock").write_text(json.dumps(this_process()))
    Steps(monkeypatch, goes_on(run), goes_on(run, 0))
    assert told(run)[1] == ["done (exit 0)"]
    write(tmp_path / "failed/failure.txt", "mpifed: error: it \x1b[2J diverged\n")()
    Steps(monkeypatch)
    assert told(tmp_path / "failed")[1] == ["mpifed: error: it \\x1b[2J diverged"]

    def ctrl_c() -> None:
        raise KeyboardInterrupt

    Steps(monkeypatch, ctrl_c)
    assert told(tmp_path / "nowhere")[0] == 130


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "sweep/sweep.csv", "")()
    Steps(monkeypatch)
    assert told(tmp_path / "sweep")[0] == 2
    assert CliRunner().invoke(main, ["show", str(tmp_path), "--follow", "--json"]).exit_code == 2
    goes_on(tmp_path / "run")()
    write(tmp_path / "run/history.csv", "0,1\n2,3\n")()
    assert told(tmp_path / "run")[0] == DataError.exit_code
