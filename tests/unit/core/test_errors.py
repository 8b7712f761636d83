"""What people read of errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mpifed.core.errors import DataError
from mpifed.core.io_errors import explaining
from mpifed.files.json_file import write_json
from mpifed.text import shown_lines


def test_nothing_steers_a_terminal() -> None:
    assert shown_lines(DataError("a\x1b[2Jb\u2028c\x07: two\nlines, é")) == "a\\x1b[2Jb\\u2028c\\x07: two\nlines, é"


REMEDIES = [(errno.ENOSPC, "make room"), (errno.EDQUOT, "quota"), (errno.EIO, "connection"), (errno.EROFS, "written")]


@pytest.mark.parametrize(("code", "remedy"), REMEDIES)
def test_an_error_of_the_system_names_file_and_remedy(
    code: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object, **named: object) -> None:
        raise OSError(code, "as the system says it")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(DataError, match=rf"run.json.*: {os.strerror(code)}; .*{remedy}"), explaining():
        write_json(tmp_path / "run.json", {})
    assert list(tmp_path.iterdir()) == []
