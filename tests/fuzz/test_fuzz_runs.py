"""Damaged and made-up jobs, runs and sweeps: whatever reads them ends cleanly; what is resumed has the same bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import date, datetime, time, timezone
from pathlib import Path
from typing import Any

import matplotlib.figure  # noqa: F401 -- here, and not anew in every child
import pytest
import tomli_w
from fuzzing import NO_FILES, STRANGE, check, ended, examples, mutated, other_table, put
from hypothesis import given
from hypothesis import strategies as st
from laws.registry import CASES, table
from methods import private
from written_files import read_json, write_json

import mpifed.batch.status
import mpifed.plots.curves  # noqa: F401
from mpifed.files.json_file import as_json
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.write import sha256
from mpifed.testing import Job

pytestmark = pytest.mark.long

# --- jobs ------------------------------------------------------------------------------------------------------------

VALUES: dict[type, list[Any]] = {  # of each type, such as readers stumble over; what is right and large takes long
    bool: [True, False],
    int: [0, 1, 2, 3, 7, -1, 50, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, -(10**400)],
    float: [0.0, -0.0, 5e-324, 1e-300, 1e-38, 1e-12, 0.5, 1.0, 3.0, 1e8, 3.4e38, 3.5e38, 1e300, 1.7e308, float("inf"),
            float("-inf"), float("nan"), -1.0],
    str: ["", " ", "a", "é", "\U0001f600", "x" * 300, ".", "..", "/abs/olute", "a/b", "-x", "--wrap=id", "a\nb",
          "a\n#SBATCH --wrap=id", "a\rb", "a\u0085b", "a\0b", "#", "$(id)", "`id`", "%j", "%s%n", "{x}", "nan", "1",
          "auto", "loss", "norm", "l1", "softmax", "fedavg", "cocoa", "no_such_module:Class", ":", "os:", ":x",
          "os:system", "json:JSONDecoder", "a:b:c", "..os:x", "os\0:x", "mpifed.algorithms.fedavg:FedAvg",
          "mpifed.maths.terms:Norm", "mpifed.maths.objectives:Softmax", "dataclasses:Field", "fractions:Fraction"],
}  # fmt: skip
TIMES = [date(2024, 1, 1), datetime(1, 1, 1, tzinfo=timezone.utc), time(23, 59, 59, 1)]
MORE: list[dict[str, Any]] = [
    {}, {"regularizer": {"name": "l1", "weight": 1e-3}}, {"simulated_network": {"name": "lte"}}, private(),
    {"stop": {"reached": ["kkt_residual<=1e-2"]}}, {"participation": {"clients_per_round": 3}}, {"sweep": {"seeds": 2}},
    {"constraint": [{"name": "loss", "limit": 1.5}]}, {"server": {"dedicated": True}}, {"audit": {"rounds": [1]}},
    {"compute": {"dtype": "float64"}}, {"sweep": {"rounds": [1, 2], "name": ["a", "b"]}},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> Any:
    """Data of each kind, by its name; without Slurm."""
    folder = tmp_path_factory.mktemp("jobs")
    two = "--labels even-odd --scale unit-rows"
    for name, words in {
        "rows": "rows --clients 4", "columns": "columns --clients 4", "halves": f"rows --clients 4 {two}",
        "cells": f"grid --grid 2x2 {two}",
    }.items():  # fmt: skip
        make_data(folder / name, "digits", "--test-fraction", "0.2", "--split", *words.split())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder))
        yield folder


def written(folder: Path, content: bytes) -> str:
    (folder / "job.toml").write_bytes(content)
    return "job.toml"


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A right job with all its defaults, in which one to three keys hold another value, mostly of their own type."""
    case, more = draw(st.sampled_from(CASES)), draw(st.sampled_from(MORE))
    job: Any = table(Path(case.split), case.algorithm, **{**case.tables, "rounds": 2, **more})
    try:
        job = Job.check(job).table() if "sweep" not in more else job
    except Exception:  # what more there is does not go with the method
        return job
    if draw(st.integers(0, 3)) == 0:
        return _of_toml(draw(other_table(job)))
    for _ in range(draw(st.integers(1, 3))):
        held = draw(st.sampled_from([job, *(one for one in job.values() if isinstance(one, dict) and one)]))
        key = draw(st.sampled_from([*held]))
        values = VALUES.get(type(held[key]))
        held[key] = draw(st.sampled_from(values or [[], {}, [3], *TIMES, *(one for one in STRANGE if one is not None)]))
    return _of_toml(job)


def _of_toml(value: Any) -> Any:
    """Without what TOML cannot have."""
    if isinstance(value, dict):
        return {key: _of_toml(one) for key, one in value.items() if one is not None}
    return [_of_toml(one) for one in value if one is not None] if isinstance(value, list | tuple) else value


@given(case=st.sampled_from(CASES), data=st.data(), command=st.sampled_from(["check", "submit"]))
@examples(6)
def test_damaged_job_files(folder: Path, case: Any, data: st.DataObject, command: str) -> None:
    job = table(Path(case.split), case.algorithm, **(case.tables | {"rounds": 2}))
    options = {"check": ["--json"], "submit": ["--dry-run", "--time", "30"]}[command]
    content = data.draw(mutated(tomli_w.dumps(job).encode()))
    check(ended([command, written(folder, content), *options], folder))


@given(job=jobs())
@examples(10)
def test_made_up_jobs(folder: Path, job: dict[str, Any]) -> None:
    """Shown, and run."""
    name = written(folder, tomli_w.dumps(job).encode())
    end = ended(["check", name, "--json"], folder)
    check(end)
    if end.code == 0 and not end.text.startswith("Imports"):
        json.loads(end.text)
    if "sweep" not in job:  # whose points end one by one
        shutil.rmtree(folder / "run", ignore_errors=True)
        limits = ["--set", "rounds=2", "--set", "stop.seconds=2"]
        check(ended(["run", name, "--out", "run", "--progress", "none", *limits], folder))


# --- runs and sweeps -------------------------------------------------------------------------------------------------

JOB: dict[str, Any] = {
    "name": "small", "data": {"path": "data"}, "model": {"name": "softmax", "bias": False},
    "client_optimizer": {"learning_rate": {"initial": 0.1, "exponent": 0.5}},
    "record": {"evaluate_every": 1, "checkpoint_every": 1},
}  # fmt: skip
STEPS = {"batch_size": 20, "local_steps": 2}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"algorithm": {"name": "scaffold", **STEPS}, "simulated_network": {"name": "lte"}},
    "private": {"algorithm": {"name": "fedavg", **STEPS}, **private(noise_multiplier=2.0, clip=0.3)},
}
READERS = (["show"], ["show", "--json"], ["plot", "--out", "f.png"])
OF_SWEEPS = (*READERS[:2], *(["compare", *more] for more in ([], ["--json"], ["--best"], ["--best", "--json"])))


def model(run: Path) -> str:
    return model_sha256(read_model(run / "model.safetensors"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two rounds and of three, and a sweep of which a submission is written down."""
    base = tmp_path_factory.mktemp("made")

    def of(*words: object) -> None:
        end = ended(words, base)
        assert end.code == 0, end.text

    of("data", "digits", "--split", "rows", "--clients", 4, "--test-fraction", 0.2, "--out", "data")
    more = {"sweep": KINDS["private"] | {"rounds": 2, "sweep": {"algorithm.batch_size": [10, 20]}}}
    runs = {f"{kind}-{rounds}": part | {"rounds": rounds} for kind, part in KINDS.items() for rounds in (2, 3)}
    for name, part in (runs | more).items():
        job = JOB | {"data": {"path": str(base / "data")}} | part
        (base / f"{name}.toml").write_text(tomli_w.dumps(job))
        of("run", f"{name}.toml", "--out", name)
    record = {"id": "12", "when": "", "command": ["submit", "x"], "script": "x", "log": "x-%j.log",
              "points": ["point-0000"]}  # fmt: skip
    points = {"job": "sweep.toml", "points": ["point-0000", "point-0001"], "submissions": [record, record]}
    write_json(base / "sweep.submitted.json", points)
    return base


DAMAGES = ["bytes", "table, sealed", "table", "arrays", "no file"]


def damage(kind: str, to: Path, data: st.DataObject) -> None:
    """Damage one of the files below a folder."""
    suffixes = {"table": (".json",), "arrays": (".safetensors", ".states")}.get(kind.partition(",")[0], "")
    paths = sorted(path for path in to.rglob("*") if path.name.endswith(suffixes or "") and path != to)
    path = data.draw(st.sampled_from([path for path in paths if kind == "no file" or path.is_file()]))
    if kind == "no file":
        put(path, data.draw(st.sampled_from(NO_FILES)))
    elif kind == "bytes":
        path.write_bytes(data.draw(mutated(path.read_bytes())))
    elif kind == "arrays":
        damage_arrays(path, data)
    else:
        text = as_json(data.draw(other_table(read_json(path))))
        head, _, _ = text.rpartition(',\n  "sha256"')  # without which it is of an earlier version
        path.write_text(text if "sealed" in kind else f"{head}\n}}\n")


def damage_arrays(path: Path, data: st.DataObject) -> None:
    """Another header or index of a file with arrays, with a checksum in the manifest that fits."""
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.dumps(data.draw(other_table(json.loads(content[8:end])))).encode()
        length = data.draw(st.sampled_from([len(header)] * 3 + [0, 1, end, 2**31, 2**63, 2**64 - 1]))
        path.write_bytes(length.to_bytes(8, "little") + header + content[end:])
    else:
        begin = int.from_bytes(content[-8:], "little")
        index = json.dumps(data.draw(other_table(json.loads(content[begin:-8])))).encode()
        path.write_bytes(content[:begin] + index + content[-8:])
    manifest = path.parent / "manifest.json"
    if manifest.exists():
        write_json(manifest, (found := read_json(manifest)) | {"files": {**found["files"], path.name: sha256(path)}})
        shutil.rmtree(path.parent.with_name("round-00000001"))


@pytest.mark.parametrize("kind", DAMAGES)
@given(name=st.sampled_from([*KINDS]), reader=st.sampled_from(READERS), data=st.data())
@examples(4)
def test_damaged_runs(made: Path, tmp_path: Path, kind: str, name: str, reader: list[str], data: st.DataObject) -> None:
    """If such a run is resumed all the same, its model has the bits of one that was not damaged."""
    to = tmp_path / "damaged"
    shutil.rmtree(to, ignore_errors=True)
    run = shutil.copytree(made / f"{name}-2", to / "run", symlinks=True)
    damage(kind, to, data)
    check(ended([reader[0], "run", *reader[1:]], to))
    if run.is_dir():
        end = ended(["run", made / f"{name}-3.toml", "--out", "run", "--resume", "--progress", "none"], to)
        check(end)
        if end.code == 0 and kind in ("bytes", "no file"):
            assert model(run) == model(made / f"{name}-3")


@pytest.mark.parametrize("kind", ["bytes", "table, sealed", "no file"])
@given(reader=st.sampled_from(OF_SWEEPS), data=st.data())
@examples(4)
def test_damaged_sweeps(made: Path, tmp_path: Path, kind: str, reader: list[str], data: st.DataObject) -> None:
    to = tmp_path / "damaged"
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(made / "sweep", to / "sweep")
    shutil.copy(made / "sweep.submitted.json", to)
    damage(kind, to, data)
    check(ended([reader[0], "sweep", *reader[1:]], to))
    again = ["run", made / "sweep.toml", "--out", "sweep", "--resume", "--progress", "none"]
    check(ended(again, to), several=True)
