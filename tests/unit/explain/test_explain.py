"""`mpifed explain`: a meaning for every key, an answer to every name; `mpifed new`: a job that runs as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from annotated_types import Gt
from click.testing import CliRunner
from documents import ROOT
from jobs_in_python import in_text

from mpifed import FedAvg
from mpifed.algorithms import ALGORITHMS
from mpifed.cli import main
from mpifed.core.errors import UsageError
from mpifed.explain.reference import entries, explained


def test_every_key_has_a_meaning() -> None:
    """Of every table, algorithm, model, term, regularizer, schedule: a sentence that is more than its name."""
    keys = [(entry.name, key) for entry in entries() for key in entry.keys]
    assert len(keys) > 150
    assert not [(name, key.name) for name, key in keys if not key.meaning.endswith(".") or len(key.meaning) < 8]
    assert not [entry.name for entry in entries() if len(entry.text) < 10]


def test_without_a_name_it_lists_all() -> None:
    told = CliRunner().invoke(main, ["explain"]).output
    names = {name for line in told.splitlines() for name in line.partition(": ")[2].split(", ")}
    assert names >= {*ALGORITHMS, "softmax", "stop", "test_loss", "75", "run"}


def test_an_editor_lists_every_key_once() -> None:
    """It lists each form of one that has several (taplo does)."""
    schema = json.loads(CliRunner().invoke(main, ["explain", "--json-schema"]).output)
    keys = schema["properties"]["algorithm"]["allOf"][0]["properties"]
    assert keys["slack_cost"]["type"] == ["array", "number", "string"]
    assert [key for key, value in keys.items() if "anyOf" in value] == ["name"]


@dataclass(frozen=True)
class Told(FedAvg):
    """FedAvg that says more."""

    warmth: Annotated[float, Gt(0)] = 0.5
    """How warm it is."""


def test_a_class_of_ones_own() -> None:
    text = explained(f"{__name__}:Told")
    assert text.startswith(f"{__name__}:Told (algorithm)\n\nFedAvg that says more.\n")
    assert "  batch_size: an integer > 0" in text and "  warmth: a number > 0, by default 0.5. How warm it is." in text
    with pytest.raises(UsageError, match=r"has no Tolt; did you mean \"Told\"\?"):
        explained(f"{__name__}:Tolt")
    for name, said in (
        ("mpifed.core.errors:UsageError", "must be a dataclass"),
        ("learning_rat", "nothing has .*_rate"),
    ):
        with pytest.raises(UsageError, match=said):
            explained(name)


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
    ended = launch(None, "new", "--algorithm", "mpifed.algorithms.fedavg:FedAvg")
    assert in_text(ended.out)["name"] == "FedAvg"
    for name, said in (("fedavgg", 'mean "fedavg"?'), ("soft:max", "importing soft")):
        ended = launch(None, "new", "--algorithm", name)
        assert ended.code == 2 and f"--algorithm {name}: " in ended.err and said in ended.err
    ended = launch(None, "new", "--data", "nowhere")
    assert ended.code == 3 and "--data nowhere: no such folder; make it with `mpifed data" in ended.err, ended.text


def test_where_it_goes(tmp_path: Path, launch: Callable[..., Any]) -> None:
    bare, dash = launch(None, "new"), launch(None, "new", "-", "--algorithm", "fedavg")
    assert bare.code == 0 and bare.out == dash.out and not bare.err
    assert in_text(bare.out)["name"] == "fedavg" and "# Make the shards:  mpifed data digits --split rows" in bare.out
    (tmp_path / "job.toml").write_text("mine")
    (tmp_path / "link.toml").symlink_to("nowhere")
    for name, code, said in (("job.toml", 2, "exists already"), ("link.toml", 2, "exists already"),
                             ("none/job.toml", 3, "No such file")):  # fmt: skip
        ended = launch(None, "new", tmp_path / name)
        assert ended.code == code and said in ended.err
    assert (tmp_path / "job.toml").read_text() == "mine"


def test_the_example_runs_where_it_is_written(tmp_path: Path, launch: Callable[..., Any]) -> None:
    """The quickstart of the clone, with its data; what is there already stays."""
    assert launch(None, "new", "--example", cwd=tmp_path).code == 0
    assert (tmp_path / "quickstart.toml").read_bytes() == (ROOT / "jobs/quickstart.toml").read_bytes()
    ended = launch(None, "run", "quickstart.toml", "--set", "rounds=2", "--progress", "none", cwd=tmp_path)
    assert ended.code == 0 and launch(None, "new", "--example", cwd=tmp_path).code == 2
