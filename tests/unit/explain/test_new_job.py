"""`mpifed new`: a short job that runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import in_text

from mpifed.testing import ALGORITHMS

DATA = {"vertical-sgd": "sides", "cocoa": "halves", **dict.fromkeys(("hyfdca", "bundle"), "patches")}
DATA |= dict.fromkeys(("hybrid-fedavg", "hyfem"), "patches")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithms_job_is_right_at_once(
    algorithm: str, tmp_path: Path, request: pytest.FixtureRequest, launch: Callable[..., Any]
) -> None:
    data, path = request.getfixturevalue(DATA.get(algorithm, "digits")), tmp_path / "a b'c.toml"
    ended = launch(None, "new", path, "--algorithm", algorithm, "--data", data)
    assert ended.code == 0, ended.text
    assert ended.out.splitlines()[-1] == f"""next: mpifed check '{tmp_path}/a b'"'"'c.toml'"""
    assert path.read_text().count("\n") < 20
    ended = launch(None, "check", path)
    assert ended.code == 0, ended.text
    assert not [line for line in ended.out.splitlines() if line.startswith("Warning")], ended.out


def test_of_other_data_and_classes(regression: Path, launch: Callable[..., Any]) -> None:
    assert in_text(launch(None, "new", "--data", regression).out)["model"] == {"name": "least-squares"}
    ended = launch(None, "new", "--algorithm", "mpifed.algorithms.fedavg:FedAvg", "--model", "mlp")
    assert in_text(ended.out)["model"] == {"name": "mlp"} and in_text(ended.out)["name"] == "FedAvg"
    for words, said in ((("--algorithm", "fedavgg"), 'mean "fedavg"?'), (("--model", "soft:max"), "importing soft")):
        ended = launch(None, "new", *words)
        assert ended.code == 2 and f"{words[0]} {words[1]}: " in ended.err and said in ended.err
    ended = launch(None, "new", "--data", "nowhere")
    assert ended.code == 3 and "--data nowhere: no such folder; make it with `mpifed data" in ended.err, ended.text


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
