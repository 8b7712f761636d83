"""Models of runs in files of other libraries: all bits, names and what is known of the run; and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from written_files import read_json, write_json

from mpifed.cli import main
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.run_folder import summary


def job_of(data: Path) -> dict[str, Any]:
    return {
        "name": "exported", "rounds": 2, "data": {"path": str(data)},
        "model": {"name": "mlp", "hidden": 6},
        "algorithm": {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": 0.2}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def trained(digits: Path, write_job: Any, launch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    ended = launch(None, "run", write_job(folder / "job.toml", job_of(digits)), "--out", folder / "run")
    assert ended.code == 0, ended.text
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def export(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["export", *map(str, arguments)])


def npz(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    with np.load(path) as file:
        return dict(file), json.loads(zipfile.ZipFile(path).comment)


def safetensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    library = pytest.importorskip("safetensors", reason="needs the extra `torch`")
    with library.safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118  # is no mapping


def torch(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    state = pytest.importorskip("torch", reason="needs the extra `torch`").load(path, weights_only=True)
    return {name: tensor.numpy() for name, tensor in state.items()}, state.mpifed


READERS: dict[str, tuple[str, Callable[[Path], tuple[dict[str, Any], dict[str, str]]]]] = {
    "npz": (".npz", npz), "safetensors": (".safetensors", safetensors), "torch": (".pt", torch),
}  # fmt: skip


@pytest.mark.parametrize("form", READERS)
def test_all_bits_by_name(form: str, run: Path, tmp_path: Path) -> None:
    suffix, read = READERS[form]
    if form != "npz":
        pytest.importorskip(form, reason="needs the extra `torch`")
    before = sorted(path.name for path in run.rglob("*"))
    ended, again = export(run, "--to", form), export(f"{run}/", "--to", form, "--out", tmp_path / "deep" / "model.bin")
    assert (ended.exit_code, again.exit_code) == (0, 0), ended.output + again.output
    path = tmp_path / f"run{suffix}"
    assert ended.output == f"model: {path}\n" and again.output == f"model: {tmp_path}/deep/model.bin\n"
    for file in (path, tmp_path / "deep" / "model.bin"):
        arrays, about = read(file)
        assert model_sha256(arrays) == summary(run)["model_sha256"] == about.pop("model_sha256")
        assert about == {"name": "exported", "rounds": "2"}
    assert {"first", "head.second", "head.hidden_bias"} < set(arrays)
    assert sorted(path.name for path in run.rglob("*")) == before  # the folder is the run's
    assert not list(tmp_path.rglob("*.new"))


def unfinished(run: Path) -> None:
    write_json(run / "run.json", read_json(run / "run.json") | {"exit": None})


def sweep(run: Path) -> None:
    (run / "sweep.csv").write_text("point\n")


def damaged(run: Path) -> None:
    (run / "model.h5").write_bytes((run / "model.h5").read_bytes()[:600])


@pytest.mark.parametrize(
    ("damage", "code", "said"),
    [
        (lambda run: (run / "model.h5").unlink(), 3, "no model yet; let the run reach its end, or go on with"),
        (unfinished, 3, "has no model yet"),
        (damaged, 3, "model.h5: no readable model"),
        (sweep, 2, "is a sweep"),
        (lambda run: (run / "run.json").unlink(), 3, "ended before it wrote run.json"),
        (shutil.rmtree, 3, "no run.json; give the folder of a run"),
    ],
)  # fmt: skip
def test_what_has_no_model(damage: Callable[[Path], None], code: int, said: str, run: Path, tmp_path: Path) -> None:
    damage(run)
    ended = export(run, "--to", "npz")
    assert ended.exit_code == code and said in ended.output and str(run) in ended.output, ended.output
    assert not (tmp_path / "run.npz").exists()


def test_other_arguments(run: Path, tmp_path: Path) -> None:
    assert "'safetensors', 'npz', 'torch'" in export(run, "--to", "onnx").output
    assert "Missing option '--to'" in export(run).output
    inside = export(run, "--to", "npz", "--out", run / "model.h5")
    assert inside.exit_code == 2 and "lies in the run's folder" in inside.output
    assert export(run, "--to", "npz", "--out", tmp_path).exit_code == 3  # a folder
    assert model_sha256(read_model(run / "model.h5")) == summary(run)["model_sha256"]


@pytest.mark.parametrize(("form", "name"), [("safetensors", "safetensors"), ("torch", "PyTorch")])
def test_a_library_that_is_missing(form: str, name: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (form, f"{form}.numpy"):
        monkeypatch.setitem(sys.modules, module, None)
    ended = export(run, "--to", form)
    assert ended.exit_code == 2
    assert f'--to {form}: {name} is missing; pip install "mpifed[torch]"' in ended.output


def test_nothing_of_the_run_is_executed_and_no_mpi_loaded(run: Path, tmp_path: Path) -> None:
    """A job of strangers that names modules, one of them right beside it."""
    text = (run / "job.toml").read_text().replace('name = "mlp"', 'name = "evil:Model"')
    assert "evil" in text
    (run / "job.toml").write_text(text)
    for folder in (run, tmp_path):
        (folder / "evil.py").write_text("raise SystemExit(99)\n")
    program = (
        "import sys\nfrom mpifed.cli import main\n"
        f"main(['export', {str(run)!r}, '--to', 'npz'], standalone_mode=False)\n"
        "assert not {'evil', 'mpi4py.MPI', 'mpi4py', 'torch'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run.npz").exists()
