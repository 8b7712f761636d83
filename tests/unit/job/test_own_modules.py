"""`mpifed check JOB` names the modules that a job imports before it imports them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jobs_in_python import job_table

from mpifed.cli import main
from mpifed.job.own_sources import own_modules


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One in which modules leave a mark when they are imported."""
    mark = "import pathlib\npathlib.Path('imported').touch()\n"
    (tmp_path / "tell_mine.py").write_text(mark)
    (tmp_path / "tell_pack" / "inner").mkdir(parents=True)
    (tmp_path / "tell_pack" / "__init__.py").write_text(mark)
    (tmp_path / "tell_pack" / "inner" / "deep.py").write_text(mark + "raise RuntimeError('on purpose')\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    sys.path[:] = [folder for folder in path if folder]
    yield tmp_path
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("tell_")]:
        del sys.modules[name]


def table(**changes: Any) -> dict[str, Any]:
    return job_table("d", **changes)


def test_all_of_a_job_and_its_sweep_are_found_without_import(folder: Path) -> None:
    found = own_modules(
        table(
            model={"name": "tell_mine:A"}, constraint=[{"name": "loss"}, {"name": "tell_pack.inner.deep:B"}],
            regularizer={"name": "tell_none:C"}, sweep={"minimize.name": ["loss", "tell_pack:D"], "seeds": 2},
        )
    )  # fmt: skip
    assert [(one.table, one.module) for one in found] == [
        ("model", "tell_mine"), ("regularizer", "tell_none"), ("constraint 2", "tell_pack.inner.deep"),
        ("sweep", "tell_pack"),
    ]  # fmt: skip
    files = [one.file and Path(one.file).relative_to(folder).as_posix() for one in found]
    assert files == ["tell_mine.py", None, "tell_pack/inner/deep.py", "tell_pack/__init__.py"]
    assert not (folder / "imported").exists()
    assert "" not in sys.path and not any(name.startswith("tell_") for name in sys.modules)


def test_a_job_of_the_package_alone_imports_nothing() -> None:
    assert own_modules(table(constraint="none", minimize=3, sweep={"a": "b:c d"})) == []


def test_they_are_named_although_the_import_fails(folder: Path, write_job: Callable[..., Path]) -> None:
    job = write_job(folder / "job.toml", table(model={"name": "tell_pack.inner.deep:Mine"}))
    end = CliRunner().invoke(main, ["check", str(job)])
    assert end.exit_code == 2
    assert end.stdout.startswith("Imports     tell_pack.inner.deep (")
    assert "for [model] tell_pack.inner.deep:Mine\n" in end.stdout
    assert "RuntimeError: on purpose" in end.stderr
    assert (folder / "imported").exists()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_look_without_import(folder: Path, write_job: Callable[..., Path], as_json: bool) -> None:
    own = {"model": {"name": "tell_mine:A", "any": 1}, "algorithm": {"name": "tell_mine:B"}}
    job = write_job(folder / "job.toml", table(**own, sweep={"seeds": 2}))
    end = CliRunner().invoke(main, ["check", str(job), "--no-import", *["--json"] * as_json])
    assert end.exit_code == 0, end.output
    assert not (folder / "imported").exists()
    if as_json:
        found = json.loads(end.stdout)
        assert [one["module"] for one in found["imports"]] == ["tell_mine", "tell_mine"]
        assert (found["job"], found["points"]) == ("job", 2)
    else:
        assert "Nothing was imported, so these tables were not checked; all others are valid." in end.stdout


def test_what_is_wrong_elsewhere_is_told_without_import(folder: Path, write_job: Callable[..., Path]) -> None:
    job = write_job(folder / "job.toml", table(model={"name": "tell_mine:A"}, rounds=0))
    end = CliRunner().invoke(main, ["check", str(job), "--no-import"])
    assert end.exit_code == 2 and "rounds = 0" in end.stderr
    assert not (folder / "imported").exists()
