"""Runs that are resumed: with what they began with, from what is whole; what is damaged is named or written again."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from ended import run
from jobs_in_python import as_in_a_file, checked, fedavg, job_table
from lengths import covering
from written_files import contents, read_json, write_json

import mpifed as mf
from mpifed.core.errors import DataError, Interrupted, MpifedError, UsageError
from mpifed.files.history import read_history
from mpifed.files.json_file import read_json as read_checked
from mpifed.files.run_folder import job_of, read_run, summary
from mpifed.run import environment
from mpifed.testing import Job, Solo

Launch = Callable[..., Any]
NOISY = {"noise_multiplier": 2.0, "noise": "test", "delta": 1e-5, "clip": 0.3, "public_preparation": True}
KINDS: dict[str, Any] = {
    "plain": {}, "private": {"privacy": NOISY}, "not reached": {"stop": {"reached": ["kkt_residual<=1e-9"]}}
}  # fmt: skip
DAMAGES: dict[str, Callable[[Path], Any]] = {
    "gone": Path.unlink, "a bit": lambda path: path.write_bytes(flipped(path.read_bytes())),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-9]), "empty": lambda path: path.write_bytes(b""),
}  # fmt: skip
AGAIN = ("job.toml", "run.json", "model.safetensors", "clients.csv")  # what is written again
NOWHERE_ELSE = {"history.csv": "plain", "ledger.jsonl": "private"}
TIMES = ("started", "ended", "host", "elapsed_s", "process", "cpu_s", "seconds_per_round", "peak_rss_bytes", "blas")


def flipped(content: bytes) -> bytes:
    """The content with another last digit."""
    at = max(content.rfind(digit) for digit in b"0123456789")
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


# --- what has ended --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> Path:
    """By kind a job `KIND.toml`, and a run of it that has ended; six clients have test rows of their own."""
    rng, folder = np.random.default_rng(1), tmp_path_factory.mktemp("ended")
    clients = [(rng.normal(size=(20, 4)).astype("f4"), rng.integers(0, 3, 20)) for _ in range(6)]
    data = mf.FederatedDataset.from_clients(clients, client_test=0.2, out=folder / "data").path
    base = {"model": {"name": "softmax", "l2": 0.01}, "record": {"evaluate_every": 1, "checkpoint_every": 1}}
    for kind, tables in KINDS.items():
        job = folder / f"{kind}.toml"
        job.write_text(tomli_w.dumps(as_in_a_file(job_table(data, algorithm=fedavg(1), **base, **tables))))
        done = launch(None, "run", job, "--out", folder / kind)
        assert done.code == (69 if kind == "not reached" else 0), done.text
    return folder


@pytest.fixture
def resumed(ended: Path, tmp_path: Path, launch: Launch) -> Callable[..., Any]:
    """resumed(kind): how its copy in `run` goes on."""
    words = ("--out", tmp_path / "run", "--resume", "--progress", "lines")
    return lambda kind, *more: launch(None, "run", ended / f"{kind}.toml", *words, *more)


def measured(out: Path) -> dict[str, Any]:
    """What stands in the files of a run, without times."""
    about = {key: value for key, value in read_json(out / "run.json").items() if key not in TIMES}
    about["exchanges"] = {name: cost["played"] for name, cost in about["exchanges"].items()}
    return {**about, "digests": sorted(about["digests"])}


@covering({"kind": KINDS, "name": AGAIN, "damage": DAMAGES})
def test_what_is_damaged_is_written_again(
    kind: str, name: str, damage: str, ended: Path, tmp_path: Path, resumed: Any
) -> None:
    """With all its bits; of a private run run.json and job.toml are said to be damaged: they count what is spent."""
    out = shutil.copytree(ended / kind, tmp_path / "run")
    before, expected = contents(out), measured(out)
    again = resumed(kind)
    assert "finished already; nothing was changed" in again.text and contents(out) == before
    DAMAGES[damage](out / name)
    again = resumed(kind)
    if kind == "private" and name in ("run.json", "job.toml") and damage != "gone" and again.code == 3:
        assert f"{name}: " in again.err, again.text
        return
    assert again.code == (69 if kind == "not reached" else 0), again.text
    assert "nothing was changed" not in again.text and measured(out) == expected
    after = contents(out)
    same = after.keys() - {"run.json"}  # which has times
    assert after.keys() == before.keys() and {path: after[path] for path in same} == {
        path: before[path] for path in same
    }
    assert "nothing was changed" in resumed(kind).text and contents(out) == after


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NOWHERE_ELSE)
def test_what_is_nowhere_else_is_named(name: str, damage: str, ended: Path, tmp_path: Path, resumed: Any) -> None:
    """And the folder is as good as new when that is put back."""
    kind = NOWHERE_ELSE[name]
    out = shutil.copytree(ended / kind, tmp_path / "run")
    DAMAGES[damage](out / name)
    again = resumed(kind)
    assert again.code == 3 and f"{out / name}: " in again.err, again.text
    shutil.copy(ended / kind / name, out / name)
    again = resumed(kind)
    assert again.code == 0 and measured(out) == measured(ended / kind), again.text


@pytest.mark.parametrize("lost", ["", "job.toml", "model.safetensors", "clients.csv", "history.csv"])
def test_without_a_checkpoint_results_stand(lost: str, ended: Path, tmp_path: Path, resumed: Any) -> None:
    """What is missing cannot be written again, and nothing is played anew over what is there."""
    out = shutil.copytree(ended / "plain", tmp_path / "run")
    shutil.rmtree(out / "checkpoint")
    if lost:
        (out / lost).unlink()
    before = contents(out)
    again = resumed("plain")
    assert again.code == (2 if lost else 0) and contents(out) == before
    assert ("finished already, and its checkpoint is gone" in again.err) == bool(lost), again.text


def test_readers_compare(ended: Path, tmp_path: Path, launch: Launch) -> None:
    show, compare, plot = ("show",), ("compare",), ("plot", "--out", "f.png")
    for name, readers in (
        ("history.csv", (show, ("show", "--json"), compare, plot)), ("model.safetensors", (show, compare)),
        ("run.json", (show, compare, plot)), ("ledger.jsonl", (show, ("show", "--json"), compare)),
    ):  # fmt: skip
        out = shutil.copytree(ended / NOWHERE_ELSE.get(name, "plain"), tmp_path / name)
        (out / name).write_bytes(flipped((out / name).read_bytes()))
        said = "" if name == "ledger.jsonl" else "was changed or damaged"
        for command, *options in readers:
            shown = launch(None, command, out, *options, cwd=tmp_path)
            assert shown.code == 3 and f"{name}: {said}" in shown.err, shown.text


def test_a_run_that_goes_on_is_read(ended: Path, tmp_path: Path, resumed: Any, launch: Launch) -> None:
    """Before it has ended, run.json has no digests; where it goes on for more rounds, none of before."""
    out = shutil.copytree(ended / "plain", tmp_path / "run")
    assert resumed("plain", "--set", "rounds=5", "--max-hours", 0).code == 75
    write_json(out / "run.json", {**read_json(out / "run.json"), "exit": None, "digests": {}})
    with open(out / "history.csv", "a") as file:
        file.write("4,")
    assert launch(None, "show", out).code == 0 and len(read_history(out)["round"]) == 4
    assert resumed("plain", "--set", "rounds=5").code == 0 and len(read_history(out)["round"]) == 6


def test_a_folder_of_version_0_1(ended: Path, tmp_path: Path, launch: Launch) -> None:
    """Its model is refused by name; history and run.json are shown."""
    out = shutil.copytree(ended / "plain", tmp_path / "run")
    (out / "model.safetensors").rename(out / "model.h5")
    write_json(out / "run.json", {**read_json(out / "run.json"), "digests": None})
    shown = launch(None, "show", out)
    assert shown.code == 0 and "rounds                         3" in shown.out and "is of mpifed 0.1" in shown.out
    for words in (("compare", out), ("plot", out, "--out", tmp_path / "f.png")):
        assert launch(None, *words).code == 0
    said = r"model\.h5: is of mpifed 0\.1, and this version reads model\.safetensors alone; .*mpifed export"
    with pytest.raises(mf.DataError, match=said):
        mf.load(out).predict(np.zeros((1, 4), "f4"))


# --- what is damaged on the way --------------------------------------------------------------------------------------

SPOILT: list[tuple[Callable[[str], str], str]] = [
    (lambda text: text.replace("0.5", "0.25"), "was changed or damaged: its sha256 is .*was expected"),
    (lambda text: text.rstrip(), "was changed or damaged"), (lambda text: text[:-20], "cannot be read"),
    (lambda text: '{"a":' * 5000, "recursion limit"), (lambda text: '{"a": NaN}', "cannot be read"),
    (lambda text: '{"a": "\\ud800"}', "cannot be read"),
]  # fmt: skip
VALUES: list[tuple[dict[str, Any], str]] = [
    ({"exit": 0, "rounds": -1}, "rounds = -1: expected a number of at least 0"), ({"rounds": 1}, "exit missing"),
    ({"exit": 0, "rounds": 2**64}, "rounds = 18446744073709551616"), ({"exit": 0, "rounds": True}, "rounds = true"),
    ({"exit": 0, "name": "\x1b[31m"}, "name = "), ({"exit": 0, "slurm_job": "--all"}, "slurm_job"),
    ({"exit": 0, "elapsed_s": 10**400}, "elapsed_s = 1000"),
    ({"exit": 0, "exchanges": {"x": {"up_bytes": 1}}}, "exchanges.x.down_bytes missing"),
]  # fmt: skip


def test_a_run_json_that_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for spoil, said in SPOILT:
        write_json(path, {"exit": 0, "elapsed_s": 0.5})
        path.write_text(spoil(path.read_text()))
        with pytest.raises(DataError, match=rf"run\.json: .*{said}"):
            read_checked(path)
    for change, said in VALUES:
        write_json(path, change)
        with pytest.raises(DataError, match=rf"run\.json: {said}.*put back the file"):
            read_run(tmp_path)


def job(folder: Path, **changes: Any) -> Job:
    record = {"evaluate_every": 1, "checkpoint_every": 1}
    model = {"name": "softmax", "bias": False, "l2": 0.01}
    return checked(job_table(folder, **{"algorithm": fedavg(4, 0.2), "record": record, "model": model} | changes))


@pytest.fixture(scope="module")
def two_rounds(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds, to be copied, as it is before run.json says how it ended."""
    run(job(digits, rounds=2), Solo(), out := tmp_path_factory.mktemp("two") / "run")
    write_json(out / "run.json", read_run(out) | {"exit": None, "digests": None})
    return out


@pytest.fixture(scope="module")
def whole(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds at once."""
    run(job(digits), Solo(), out := tmp_path_factory.mktemp("whole") / "run")
    return out


MANIFESTS: list[tuple[dict[str, Any], str]] = [
    ({"round": "2"}, 'round = "2"'), ({"round": 1}, "is of round 1"), ({"attempt": 10**400}, "attempt = 1000"),
    ({"files": {"../../x": "0" * 64}}, "files"), ({"files": {}}, "does not name all files"),
    ({"run": {"job": {}, "identity": {}}}, "run.identity.data missing"), ({"first": {"objective": 1.0}}, "first"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), [*MANIFESTS, *((damage, "") for damage in DAMAGES)])
def test_damaged_checkpoints_fall_back(
    digits: Path, two_rounds: Path, whole: Path, here: Path, changes: Any, said: str, capsys: Any
) -> None:
    out = shutil.copytree(two_rounds, here / "run")
    (out / "run.json").write_text((out / "run.json").read_text().replace('"rounds": 2', '"rounds": 1'))
    both, newest = shutil.copytree(out, here / "both"), out / "checkpoint" / "round-00000002"
    if said:  # with a checksum that fits
        write_json(newest / "manifest.json", read_json(newest / "manifest.json") | changes)
    else:
        DAMAGES[changes](newest / "server.states")
    mf.run(job(digits).table(), out="run", resume=True, progress="lines")
    warned = capsys.readouterr().err
    assert "goes on after round 1; round-00000002: " in warned and said in warned
    assert "run.json: was changed or damaged" in warned  # and is written anew
    assert summary(out)["model_sha256"] == summary(whole)["model_sha256"]
    for path in (both / "checkpoint").glob("*/manifest.json"):
        write_json(path, read_json(path) | {"attempt": -1})
    with pytest.raises(DataError, match=r"round-00000002: manifest\.json: attempt = -1.*round-00000001: .*attempt"):
        run(job(digits), Solo(), both, resume=True)


def test_a_history_that_is_gone_or_has_a_row_less_or_more(digits: Path, two_rounds: Path, tmp_path: Path) -> None:
    """And what was half written goes, but for what is no run's."""
    out = Path(shutil.copytree(two_rounds, tmp_path / "run"))
    lines = (out / "history.csv").read_text().splitlines(keepends=True)
    none = r"(not as a run|has 0 whole rows up to round 2, .* 3 had been)"
    for text, said in (
        (None, none), ("", none), ("round,elap", none), ("\n", none),
        ("".join([*lines[:2], *lines[3:]]), "has 2 whole rows up to round 2, .* 3 had been measured"),
    ):  # fmt: skip
        (out / "history.csv").unlink()
        if text is not None:
            (out / "history.csv").write_text(text)
        with pytest.raises(DataError, match=rf"history\.csv: {said}"):
            run(job(digits), Solo(), out, resume=True)
        (out / "history.csv").touch()
    (out / "history.csv").write_text("".join([*lines, "9,torn"]))
    mine = {out / ".notes.0123456789abcdef.new", out / ".run.json.new", out / ".run.json.0123456789abcdeF.new"}
    for path in (*mine, out / ".run.json.0123456789abcdef.new", out / ".model.safetensors.00000000deadbeef.new"):
        path.write_text("half")
    run(job(digits), Solo(), out, resume=True)
    assert summary(out)["rounds"] == 3 and set(out.glob(".*")) == mine


# --- with what it began with -----------------------------------------------------------------------------------------

ANOTHER: list[tuple[dict[str, Any], str]] = [
    ({"seed": 2}, "seed: 1 before, 2 now"),
    ({"data": {"block": 3}}, "data.block: 4 before, 3 now"),
    ({"model": {"name": "softmax", "bias": False, "l2": 0.02}}, "model.l2: 0.01 before, 0.02 now"),
    ({"compute": {"dtype": "float64"}}, "float64"),
    ({"rounds": 1}, "rounds = 1, and 3 are done; give as many"),
    ({"aggregation": {"arithmetic": "exact-blocks"}}, "aggregation.arithmetic: 'exact' before, 'exact-blocks' now"),
    ({"participation": {"clients_per_round": 3}}, "participation.clients_per_round: None before, 3 now"),
]


def test_resuming_another_job_is_refused(digits: Path, whole: Path) -> None:
    before = contents(whole)
    for change, said in ANOTHER:
        with pytest.raises(MpifedError, match=said):
            other = job(digits, **change | {"data": {"path": str(digits)} | change.get("data", {})})
            run(other, Solo(), whole, resume=True)
        assert {name for name in before if contents(whole)[name] != before[name]} <= {"failure.txt"}


def test_the_block_that_it_began_with_and_other_data(
    digits: Path, whole: Path, tmp_path: Path, make_data: Callable[..., Path]
) -> None:
    """Whatever a later version would choose; data that were moved are the same data, lost ones no matter at the end."""
    out, data = tmp_path / "run", Path(shutil.copytree(digits, tmp_path / "data"))
    of_one = {"path": str(digits), "block": 1}
    run(job(digits, rounds=1, data=of_one), Solo(), out)
    run(job(data), Solo(), out, resume=True)
    assert summary(out)["train_loss"] == summary(whole)["train_loss"] and job_of(out)["data"]["block"] == 1
    shutil.rmtree(data)
    before = contents(out)
    assert run(job(data), Solo(), out, resume=True).rounds == 3 and contents(out) == before
    states = {"algorithm": fedavg(4) | {"name": "scaffold"}}
    run(job(digits, rounds=1, data=of_one, **states), Solo(), tmp_path / "states")
    with pytest.raises(UsageError, match=r"data\.block: 1 before, 2 now"):  # before any state is read
        run(job(digits, data={**of_one, "block": 2}, **states), Solo(), tmp_path / "states", resume=True)
    words = ("digits", "--split", "rows", "--test-fraction", "0.2", "--clients")
    partition = read_json(digits / "federation.json")["provenance"]["options"]["partition"]
    scaled = make_data(tmp_path / "scaled", *words, "8", "--partition", partition, "--scale", "standard")
    said = r"with other data \(sha256: \w{12} before, \w{12} now; .*options.scale: "
    for other, which in ((scaled, said), (make_data(tmp_path / "other", *words, "3"), "options.clients: 8 before, 3")):
        with pytest.raises(UsageError, match=which) as caught:
            task = job(other, rounds=4, data={"path": str(other), "block": 1})
            run(task, Solo(), out, resume=True, accept_changed=True)
        assert ("clients" in str(caught.value)) == (other != scaled)


FILES = {
    "own_mine.py": """from dataclasses import dataclass, replace
from own_package.helper import FACTOR
from mpifed.maths.regularizers import L1

@dataclass(frozen=True)
class Mine(L1):
    def plot(self):
        import click, own_package.late
""",
    "own_package/__init__.py": "import numpy, json\nfrom . import sibling\n",
    "own_package/helper.py": "FACTOR = 2\n",
    "own_package/sibling.py": "from .helper import FACTOR\nimport scipy.sparse as sparse\n",
    "own_package/late.py": "from ..elsewhere import nothing\n",
    "own_package/unused.py": "",
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of `sys.path` with a regularizer and what it imports."""
    folder = tmp_path / "own"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.startswith(("own_mine", "own_package"))]:
        del sys.modules[name]


def test_changed_sources_and_libraries_are_refused_unless_accepted(
    own: Path, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, out = job(digits, regularizer={"name": "own_mine:Mine", "weight": 0.1}), tmp_path / "run"
    with pytest.raises(Interrupted):
        run(task, Solo(), out, max_hours=0)
    for name, now, said in (
        ("versions", {"numpy": "0.1", "python": "2"}, rf"numpy: {np.__version__} before, 0.1 now"),
        ("blas", ["other 1"], "BLAS: .* before, other 1 now"), ("blas", [], "BLAS: .* before, none known now"),
    ):  # fmt: skip
        with monkeypatch.context() as patch, pytest.raises(UsageError, match=said) as caught:
            patch.setattr(environment, name, lambda now=now: now)
            run(task, Solo(), out, resume=True)
        assert "python" not in str(caught.value)
    for file in ("own_mine.py", "own_package/late.py"):
        (own / file).write_text(FILES[file] + "# edited\n")
        with pytest.raises(UsageError, match=rf"other sources or.*{file}: \w{{12}} before, .*--accept-changed"):
            run(task, Solo(), out, resume=True)
    run(replace(task, rounds=2), Solo(), out, resume=True, accept_changed=True)
    run(task, Solo(), out, resume=True)
    told = read_json(out / "run.json")
    first, second = told["accepted_changes"]
    assert first.startswith("after round 0: own_mine.py: ") and second.startswith("after round 0: own_package/late.py")
    assert told["sources"].keys() == FILES.keys() - {"own_package/unused.py"}
    assert told["distributions"]["numpy"] == np.__version__


def test_private_runs_do_not_tell_the_checksum_of_their_data(digits: Path, whole: Path, tmp_path: Path) -> None:
    run(job(digits, privacy=NOISY, model={"name": "softmax"}), Solo(), tmp_path / "run")
    text = "".join((tmp_path / "run" / name).read_text("latin-1") for name in ("run.json", "model.safetensors"))
    assert "data_sha256" not in text and len(read_json(whole / "run.json")["data_sha256"]) == 64
    (manifest,) = (tmp_path / "run" / "checkpoint").glob("*3/manifest.json")
    assert read_json(manifest)["run"]["identity"]["data"]["sha256"] not in text


NODE = """from mpifed.comm.mpi import launched_rank
import os, sys
os.chdir(f"node-{launched_rank()}")
sys.path.insert(0, os.getcwd())
from mpifed.cli import main
main()
"""
MODULE = 'import dataclasses, mpifed as mf\n@dataclasses.dataclass(frozen=True)\nclass Mine(mf.L1):\n    "{}"\n'


@pytest.mark.launch
@pytest.mark.parametrize("what", ["sources", "labels"])
def test_ranks_that_see_others_than_rank_0(
    what: str, own: Path, digits: Path, tmp_path: Path, make_data: Callable[..., Path], launch: Launch
) -> None:
    """On a node's disk, say; data of the same shapes, whole and undamaged."""
    for rank in range(2):
        shutil.copytree(digits, tmp_path / f"node-{rank}" / "data")
        (tmp_path / f"node-{rank}" / "own_node.py").write_text(MODULE.format(rank if what == "sources" else 0))
    if what == "labels":
        shutil.rmtree(other := tmp_path / "node-1" / "data")
        make_data(other, "digits", *["--split", "rows", "--clients", "8", "--seed", "5", "--test-fraction", "0.2"])
    task = job(Path("data"), rounds=1, regularizer={"name": "own_mine:Mine", "weight": 0.1})
    (tmp_path / "job.toml").write_text(task.text().replace("own_mine", "own_node"))
    done = launch(2, "run", "../job.toml", cwd=tmp_path, program=("-c", NODE))
    said = "own classes must be of the same files on all nodes" if what == "sources" else "rank 1 sees other data than"
    assert done.code == (2 if what == "sources" else 3) and done.text.count(said) == 1, done.text
