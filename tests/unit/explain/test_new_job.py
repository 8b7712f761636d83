"""`mpifed new`: a job that runs as it is, with every key of what it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jobs_in_python import in_text

from mpifed.cli import main
from mpifed.explain.entries import entries
from mpifed.explain.new_job import new_job
from mpifed.testing import ALGORITHMS, Job

DATA = {"vertical-sgd": "sides", "cocoa": "halves", **dict.fromkeys(("hyfdca", "bundle"), "patches")}
DATA |= dict.fromkeys(("hybrid-fedavg", "hyfem"), "patches")


def uncommented(text: str) -> dict[str, Any]:
    """The job with the defaults that stand behind #, without the tables that are off."""
    on, lines = True, []
    for line in text.splitlines():
        if re.match(r"#?\[", line):
            on = line.startswith("[")
        if on:
            lines.append(re.sub(r"^#(\w+ = \S)", r"\1", line))
    return in_text("\n".join(lines))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithms_job_is_right_at_once(
    algorithm: str, tmp_path: Path, request: pytest.FixtureRequest, launch: Callable[..., Any]
) -> None:
    data, path = request.getfixturevalue(DATA.get(algorithm, "digits")), tmp_path / "a b'c.toml"
    ended = launch(None, "new", path, "--algorithm", algorithm, "--data", data)
    assert ended.code == 0, ended.text
    assert ended.out.splitlines()[-1] == f"""next: mpifed check '{tmp_path}/a b'"'"'c.toml'"""
    ended = launch(None, "check", path)
    assert ended.code == 0, ended.text
    assert not [line for line in ended.out.splitlines() if line.startswith("Warning")], ended.out


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_key_is_there_with_its_default(algorithm: str) -> None:
    """What stands behind # changes nothing where the # is taken away."""
    text = new_job("t", algorithm, "data")
    job = Job.check(in_text(text))
    assert Job.check(uncommented(text)).table() == job.table()
    read = {entry.name: entry for entry in entries() if entry.name in (algorithm, job.model["name"])}
    for entry in read.values():
        assert not [key.name for key in entry.keys if not re.search(rf"^#?{key.name} =", text, re.MULTILINE)]
    tables = {entry.name for entry in entries() if entry.kind == "table"} - {"sweep"}
    there = set(re.findall(r"^#?\[+(\w+)\]", text, re.MULTILINE))
    assert tables - there <= {"client_optimizer", "server_optimizer", "constraint", "privacy"}
    explained = [line for line in text.splitlines() if re.match(r"#?\w+ ?=", line)]
    assert len(explained) >= 50 and len(set(text.splitlines())) > 2 * 50


def test_what_the_data_are(regression: Path, digits: Path) -> None:
    assert in_text(new_job("t", "fedavg", str(regression)))["model"]["name"] == "least-squares"
    job = in_text(new_job("t", "fedavg", str(regression)))
    assert job["algorithm"]["batch_size"] <= 32
    assert in_text(new_job("t", "ssca", str(digits)))["algorithm"]["batch_size"] == 32


def test_where_it_goes(tmp_path: Path, launch: Callable[..., Any]) -> None:
    bare, dash = launch(None, "new"), launch(None, "new", "-", "--algorithm", "fedavg")
    assert bare.code == 0 and bare.out == dash.out and not bare.err
    assert in_text(bare.out)["name"] == "fedavg"
    (tmp_path / "job.toml").write_text("mine")
    (tmp_path / "link.toml").symlink_to("nowhere")
    for name in ("job.toml", "link.toml"):
        ended = launch(None, "new", tmp_path / name)
        assert ended.code == 2 and "exists already" in ended.err
    assert (tmp_path / "job.toml").read_text() == "mine"
    ended = launch(None, "new", tmp_path / "none" / "job.toml")
    assert ended.code == 3 and "No such file" in ended.err


def test_a_file_that_was_made_in_between_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.toml"

    def meanwhile(*_: object) -> str:
        path.write_text("mine")
        return "theirs"

    monkeypatch.setattr("mpifed.explain.new_job.new_job", meanwhile)
    ended = CliRunner().invoke(main, ["new", str(path)])
    assert ended.exit_code == 2 and path.read_text() == "mine"
    assert [*tmp_path.iterdir()] == [path]
