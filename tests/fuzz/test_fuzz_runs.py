"""Damaged folders of runs and sweeps: whatever reads them ends cleanly, and what is resumed has the same bits."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import matplotlib.figure  # noqa: F401 -- here, and not anew in every child
import pytest
from damaging import other_table, replace, spoil_model
from fuzzing import check, ended, examples, mutated, seeds
from hypothesis import given
from hypothesis import strategies as st
from written_files import read_json, write_json

import mpifed.batch.status
import mpifed.plots.curves  # noqa: F401
from mpifed.files.json_file import as_json
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.write import sha256

pytestmark = pytest.mark.long

JOB = """
name = "small"
rounds = {rounds}
[data]
path = "{data}"
[model]
name = "softmax"
bias = false
[algorithm]
name = "{algorithm}"
batch_size = 20
local_steps = 2
[client_optimizer]
learning_rate = {{initial = 0.1, exponent = 0.5}}
[record]
evaluate_every = 1
checkpoint_every = 1
{more}
"""
PRIVATE = """[privacy]
noise_multiplier = 2.0
noise = "test"
delta = 1e-5
clip = 0.3
public_preparation = true
"""
NETWORK = """[simulated_network]
name = "lte"
"""
KINDS = {"plain": ("scaffold", NETWORK), "private": ("fedavg", PRIVATE)}
READERS = (["show"], ["show", "--json"], ["plot", "--out", "f.png"])
SWEEP_READERS = (
    *READERS[:2],
    ["compare"],
    ["compare", "--json"],
    ["compare", "--best"],
    ["compare", "--best", "--json"],
)


class Made:
    """Folders that were not damaged, and what models they lead to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.models = folder, dict[str, str]()
        self.of(["data", "digits", "--split", "rows", "--clients", 4, "--test-fraction", 0.2, "--out", "data"])
        for name, (algorithm, more) in KINDS.items():
            for rounds in (2, 3):
                text = JOB.format(data=folder / "data", rounds=rounds, algorithm=algorithm, more=more)
                (folder / f"{name}-{rounds}.toml").write_text(text)
                self.of(["run", f"{name}-{rounds}.toml", "--out", f"{name}-{rounds}"])
            self.models[name] = self.model(folder / f"{name}-3")
        text = (folder / "private-2.toml").read_text() + '[sweep]\n"algorithm.batch_size" = [10, 20]\n'
        (folder / "sweep.toml").write_text(text)
        self.of(["run", "sweep.toml", "--out", "sweep"])
        record = {
            "id": "12",
            "when": "",
            "command": ["submit", "x"],
            "script": "x",
            "log": "x-%j.log",
            "points": ["point-0000"],
        }
        write_json(folder / "sweep.submitted.json", {
            "job": "sweep.toml", "points": ["point-0000", "point-0001"], "submissions": [record, record],
        })  # fmt: skip

    def of(self, arguments: list[Any]) -> None:
        """A command that must succeed."""
        end = ended(arguments, self.folder)
        assert end.code == 0, end.text

    @staticmethod
    def model(run_dir: Path) -> str:
        """What the bits of a model are known by."""
        return model_sha256(read_model(run_dir / "model.safetensors"))

    def files(self, name: str) -> list[str]:
        """Of a folder, and beside it."""
        found = [path for path in (self.folder / name).rglob("*") if path.is_file()]
        beside = [self.folder / f"{name}.submitted.json"]
        return sorted(str(path.relative_to(self.folder)) for path in [*found, *(one for one in beside if one.exists())])

    def copied(self, name: str, to: Path) -> Path:
        """A copy to be damaged, in `to`; its folder."""
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        shutil.copytree(self.folder / name, to / name, symlinks=True)
        for path in self.folder.glob(f"{name}.submitted.json"):
            shutil.copy(path, to)
        return to / name

    def resumed(self, folder: Path, same: bool = True) -> None:
        """Resume a damaged run to its third round; if that succeeds, its model has the bits of one not damaged."""
        kind = folder.name.partition("-")[0]
        job = self.folder / f"{kind}-3.toml"
        end = ended(["run", job, "--out", folder, "--resume", "--progress", "none"], folder.parent)
        check(end)
        if end.code == 0 and same:
            assert self.model(folder) == self.models[kind]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "damaged"


def read(folder: Path, reader: list[str]) -> None:
    check(ended([reader[0], folder, *reader[1:]], folder.parent))


names = st.sampled_from(["plain-2", "private-2"])
numbers = st.integers(0, 10**6)


@examples(4)
@given(name=names, number=numbers, seed=seeds, reader=st.sampled_from(READERS))
def test_bytes_of_any_file(made: Made, to: Path, name: str, number: int, seed: int, reader: list[str]) -> None:
    folder, files = made.copied(name, to), made.files(name)
    path = to / files[number % len(files)]
    path.write_bytes(mutated(path.read_bytes(), seed))
    read(folder, reader)
    made.resumed(folder)


@examples(4)
@given(name=names, number=numbers, seed=seeds, sealed=st.booleans(), reader=st.sampled_from(READERS))
def test_tables(made: Made, to: Path, name: str, number: int, seed: int, sealed: bool, reader: list[str]) -> None:
    folder = made.copied(name, to)
    files = [one for one in made.files(name) if one.endswith(".json")]
    path = to / files[number % len(files)]
    spoil_table(path, seed, sealed)
    read(folder, reader)
    made.resumed(folder, same=False)


def spoil_table(path: Path, seed: int, sealed: bool) -> None:
    """Another table, with its checksum or, as of an earlier version, without."""
    text = as_json(other_table(read_json(path), seed))
    if not sealed:
        head, _, _ = text.rpartition(',\n  "sha256"')
        text = f"{head}\n}}\n"
    path.write_text(text)


@examples(4)
@given(name=names, number=numbers, seed=seeds, reader=st.sampled_from(READERS))
def test_arrays(made: Made, to: Path, name: str, number: int, seed: int, reader: list[str]) -> None:
    """And states, with checksums in the manifest that fit, so that damage inside comes to be read."""
    folder = made.copied(name, to)
    files = [one for one in made.files(name) if one.endswith((".safetensors", ".states"))]
    path = to / files[number % len(files)]
    if path.suffix == ".safetensors":
        spoil_model(path, seed)
    else:
        spoil_states(path, seed)
    manifest = path.parent / "manifest.json"
    if manifest.exists():
        table = read_json(manifest)
        table["files"][path.name] = sha256(path)
        write_json(manifest, table)
        shutil.rmtree(path.parent.with_name("round-00000001"))
    read(folder, reader)
    made.resumed(folder, same=False)


def spoil_states(path: Path, seed: int) -> None:
    """Other bytes, or another index."""
    content = path.read_bytes()
    begin = int.from_bytes(content[-8:], "little")
    index = json.dumps(other_table(json.loads(content[begin:-8]), seed)).encode()
    path.write_bytes(content[:begin] + index + content[-8:] if seed % 4 else mutated(content, seed))


@examples(4)
@given(name=names, number=numbers, seed=seeds, reader=st.sampled_from(READERS))
def test_what_is_no_file(made: Made, to: Path, name: str, number: int, seed: int, reader: list[str]) -> None:
    folder, files = made.copied(name, to), made.files(name)
    paths = sorted({path for one in files for path in (to / one, *(to / one).parents) if to in path.parents})
    replace(paths[number % len(paths)], seed)
    read(folder, reader)
    if os.path.isdir(folder):
        made.resumed(folder)


@examples(4)
@given(number=numbers, seed=seeds, kind=st.integers(0, 2), reader=st.sampled_from(SWEEP_READERS))
def test_sweeps(made: Made, to: Path, number: int, seed: int, kind: int, reader: list[str]) -> None:
    folder = made.copied("sweep", to)
    files = [one for one in made.files("sweep") if not one.endswith(".safetensors")]
    most = [one for one in files if one.count("/") < 2 and not one.endswith("lock")]
    path = to / (most[number // 2 % len(most)] if number % 2 else files[number % len(files)])
    if kind == 0:
        path.write_bytes(mutated(path.read_bytes(), seed))
    elif kind == 1 and path.suffix == ".json":
        spoil_table(path, seed, True)
    else:
        replace(path, seed)
    read(folder, reader)
    if number % 5 == 0:
        again = ["run", made.folder / "sweep.toml", "--out", folder, "--resume", "--progress", "none"]
        check(ended(again, to), several=True)
