"""More memory than there is: one message."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mpifed.cli import main
from mpifed.forecast import job
from mpifed.run.launch import guarded
from mpifed.testing import Alone


def test_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise MemoryError("Unable to allocate 29 GiB")

    monkeypatch.setattr(job, "forecast", fails)
    (tmp_path / "job.toml").write_text("")
    end = CliRunner().invoke(main, ["check", str(tmp_path / "job.toml")])
    assert end.exit_code == 1
    assert end.stderr.startswith("mpifed: error: not enough memory: Unable to allocate 29 GiB; take a smaller model")
    assert end.stderr.count("\n") == 1


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise MemoryError("Unable to allocate 29 GiB")

    with pytest.raises(SystemExit) as end:
        guarded(Alone(), None, fails)
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("mpifed: error: not enough memory: Unable") and said.count("\n") == 1
