"""What holds for every command."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpifed.cli import main
from mpifed.core.errors import DataError
from mpifed.forecast import job


def test_an_output_takes_all_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, "ascii"))
    main(["--version"], standalone_mode=False)
    print("\xe9\udcff", flush=True)
    assert content.getvalue().endswith(b"\\xe9\\udcff\n")


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_an_output_that_was_closed_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, None)
    main(["--version"], standalone_mode=False)
    stream = getattr(sys, name)
    assert stream.name == os.devnull
    stream.write("nobody reads it")
    stream.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device here that is always full")
def test_a_message_steers_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise DataError("a\x1b[2Jb.h5: damaged")

    monkeypatch.setattr(job, "read", fails)
    (tmp_path / "job.toml").write_text("")
    end = CliRunner().invoke(main, ["check", str(tmp_path / "job.toml")])
    assert (end.exit_code, end.stderr) == (3, "mpifed: error: a\\x1b[2Jb.h5: damaged\n")
