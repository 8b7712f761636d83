"""A run that has ended: whoever reads it sees what was changed, and `--resume` writes again what is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from jobs_in_python import as_in_a_file, fedavg, job_table
from lengths import covering
from written_files import contents, read_json, write_json

import mpifed as mf
from mpifed.files.history import read_history
from mpifed.files.model_file import read_model

PRIVATE = {"noise_multiplier": 2.0, "noise": "test", "delta": 1e-5, "clip": 0.3, "public_preparation": True}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "private": {"privacy": PRIVATE},
    "not reached": {"stop": {"reached": ["kkt_residual<=1e-9"]}},
}
DAMAGES: dict[str, Callable[[Path], Any]] = {
    "gone": Path.unlink,
    "a bit": lambda path: path.write_bytes(flipped(path.read_bytes())),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
}
AGAIN = ("job.toml", "run.json", "model.safetensors", "clients.csv")  # what is written again
TIMES = ("started", "ended", "host", "elapsed_s", "process", "cpu_s", "seconds_per_round", "peak_rss_bytes", "blas")


def flipped(content: bytes) -> bytes:
    """The content with another last digit."""
    at = max(content.rfind(digit) for digit in b"0123456789")
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clients, of which each has test rows of its own."""
    rng = np.random.default_rng(1)
    clients = [(rng.normal(size=(20, 4)).astype("f4"), rng.integers(0, 3, 20)) for _ in range(6)]
    folder = tmp_path_factory.mktemp("data") / "data"
    return mf.FederatedDataset.from_clients(clients, client_test=0.2, out=folder).path


@pytest.fixture(scope="module")
def ended(data: Path, tmp_path_factory: pytest.TempPathFactory, launch: Callable[..., Any]) -> Path:
    """By kind a job `KIND.toml`, and a run of it that has ended."""
    folder = tmp_path_factory.mktemp("ended")
    for kind, tables in KINDS.items():
        base = {
            "model": {"name": "softmax", "l2": 0.01},
            "algorithm": fedavg(1),
            "record": {"evaluate_every": 1, "checkpoint_every": 1},
        }
        job = folder / f"{kind}.toml"
        job.write_text(tomli_w.dumps(as_in_a_file(job_table(data, rounds=3, **base | tables))))
        done = launch(None, "run", job, "--out", folder / kind)
        assert done.code == (69 if kind == "not reached" else 0), done.text
    return folder


def resumed(ended: Path, kind: str, out: Path, launch: Callable[..., Any]) -> Any:
    return launch(None, "run", ended / f"{kind}.toml", "--out", out, "--resume", "--progress", "lines")


def measured(out: Path) -> dict[str, Any]:
    """What stands in the files of a run, without times."""
    about = {key: value for key, value in read_json(out / "run.json").items() if key not in TIMES}
    digests = about.pop("digests")
    about["exchanges"] = {name: cost["played"] for name, cost in about["exchanges"].items()}
    return {**about, "files": sorted(digests)}


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_what_has_ended_changes_nothing(kind: str, ended: Path, launch: Callable[..., Any]) -> None:
    before = contents(ended / kind)
    again = resumed(ended, kind, ended / kind, launch)
    assert again.code == 0 or kind == "not reached", again.text
    assert "finished already; nothing was changed" in again.text and contents(ended / kind) == before


@covering({"kind": KINDS, "name": AGAIN, "damage": DAMAGES})
def test_what_is_damaged_is_written_again(
    kind: str, name: str, damage: str, ended: Path, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    """With all its bits; of a private run run.json and job.toml are said to be damaged: they count what is spent."""
    out = shutil.copytree(ended / kind, tmp_path / "run")
    before, expected = contents(out), measured(out)
    DAMAGES[damage](out / name)
    again = resumed(ended, kind, out, launch)
    if kind == "private" and name in ("run.json", "job.toml") and damage != "gone" and again.code == 3:
        assert again.code == 3 and f"{name}: " in again.err, again.text
        return
    assert again.code == (69 if kind == "not reached" else 0), again.text
    assert "nothing was changed" not in again.text and measured(out) == expected
    after = contents(out)
    for path in ("job.toml", "model.safetensors", "clients.csv", "history.csv"):
        assert after[path] == before[path], path
    assert after.keys() == before.keys()
    assert "nothing was changed" in resumed(ended, kind, out, launch).text and contents(out) == after


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("kind", "name"), [("plain", "history.csv"), ("private", "ledger.jsonl")])
def test_what_is_nowhere_else_is_named(
    kind: str, name: str, damage: str, ended: Path, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    """And the folder is as good as new when that is put back."""
    out = shutil.copytree(ended / kind, tmp_path / "run")
    DAMAGES[damage](out / name)
    again = resumed(ended, kind, out, launch)
    assert again.code == 3 and f"{out / name}: " in again.err, again.text
    shutil.copy(ended / kind / name, out / name)
    again = resumed(ended, kind, out, launch)
    assert again.code == 0 and measured(out) == measured(ended / kind), again.text


@pytest.mark.parametrize("name", ["job.toml", "model.safetensors", "clients.csv", "history.csv"])
def test_without_a_checkpoint_results_stand(name: str, ended: Path, tmp_path: Path, launch: Callable[..., Any]) -> None:
    """What is missing cannot be written again, and nothing is played anew over what is there."""
    out = shutil.copytree(ended / "plain", tmp_path / "run")
    shutil.rmtree(out / "checkpoint")
    (out / name).unlink()
    before = contents(out)
    again = resumed(ended, "plain", out, launch)
    assert again.code == 2 and "finished already, and its checkpoint is gone" in again.err, again.text
    assert contents(out) == before


READERS = {
    "show": ("show",), "show --json": ("show", "--json"), "compare": ("compare",), "plot": ("plot", "--out", "f.png"),
}  # fmt: skip
READ = {
    "history.csv": READERS, "model.safetensors": ("show", "compare"), "run.json": ("show", "compare", "plot"),
    "ledger.jsonl": ("show", "show --json", "compare"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "reader"), [(name, reader) for name, all_of in READ.items() for reader in all_of])
def test_readers_compare(name: str, reader: str, ended: Path, tmp_path: Path, launch: Callable[..., Any]) -> None:
    out = shutil.copytree(ended / ("private" if name == "ledger.jsonl" else "plain"), tmp_path / "run")
    (out / name).write_bytes(flipped((out / name).read_bytes()))
    command, *options = READERS[reader]
    shown = launch(None, command, out, *options, cwd=tmp_path)
    said = "" if name == "ledger.jsonl" else "was changed or damaged"
    assert shown.code == 3 and f"{name}: {said}" in shown.err, shown.text


@pytest.mark.parametrize("name", ["job", "clients", "columns", "model"])
def test_nothing_is_read_of_a_run_that_took_its_place(
    name: str, ended: Path, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    run = mf.load(out := shutil.copytree(ended / "plain", tmp_path / "run"))
    assert launch(None, "run", ended / "plain.toml", "--out", out, "--overwrite", "--set", "seed=2").code == 0
    with pytest.raises(mf.DataError, match="a run has written here since this one was read"):
        getattr(run, name)


def test_a_run_that_goes_on_is_read(ended: Path, tmp_path: Path, launch: Callable[..., Any]) -> None:
    """Before it has ended, run.json has no digests; where it goes on for more rounds, none of before."""
    out = shutil.copytree(ended / "plain", tmp_path / "run")
    more = ("run", ended / "plain.toml", "--out", out, "--resume", "--set", "rounds=5")
    assert launch(None, *more, "--max-hours", 0).code == 75
    write_json(out / "run.json", {**read_json(out / "run.json"), "exit": None, "digests": {}})
    with open(out / "history.csv", "a") as file:
        file.write("4,")
    assert launch(None, "show", out).code == 0 and len(read_history(out)["round"]) == 4
    assert launch(None, *more).code == 0 and len(read_history(out)["round"]) == 6


def test_a_folder_of_version_0_1(ended: Path, tmp_path: Path, launch: Callable[..., Any]) -> None:
    """Its model is refused by name; history and run.json are shown."""
    out = shutil.copytree(ended / "plain", tmp_path / "run")
    (out / "model.safetensors").rename(out / "model.h5")
    write_json(out / "run.json", {**read_json(out / "run.json"), "digests": None})
    shown = launch(None, "show", out)
    assert (
        shown.code == 0
        and "rounds                         3" in shown.out
        and "model.h5: is of mpifed 0.1" in shown.out
    )
    for words in (("compare", out), ("plot", out, "--out", tmp_path / "f.png")):
        assert launch(None, *words).code == 0
    said = r"model\.h5: is of mpifed 0\.1, and this version reads model\.safetensors alone; .*mpifed export"
    with pytest.raises(mf.DataError, match=said):
        mf.load(out).predict(np.zeros((1, 4), "f4"))
    for path in (out / "model.safetensors", out / "model.h5"):
        with pytest.raises(mf.DataError, match=said):
            read_model(path)
