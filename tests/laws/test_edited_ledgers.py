"""A run folder in which somebody has edited something: what agrees no longer ends with code 3, and says where."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jobs_in_python import checked
from registry import table
from whole_runs import run
from written_files import read_json, write_json

from mpifed.cli import main
from mpifed.core.errors import DataError, UsageError
from mpifed.privacy.ledger_file import LEDGER, sealed
from mpifed.testing import Job, Solo

ROUNDS = 6
PRIVACY = {"delta": 1e-4, "clip": 1.0, "noise_multiplier": 5.0, "noise": "test"}


def job_of(folder: Path, /, **changes: Any) -> dict[str, Any]:
    """Three of eight clients in each round."""
    base = {
        "rounds": ROUNDS, "seed": 5,
        "model": {"name": "softmax", "bias": False}, "participation": {"clients_per_round": 3},
        "privacy": PRIVACY, "aggregation": {"bounds": {"noise": 64.0}},
        "record": {"evaluate_every": 0, "checkpoint_every": 3},
    }  # fmt: skip
    return table(folder, {"name": "private_algorithms:Noise"}, **(base | changes))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "calibrated": {"privacy": {"delta": 1e-4, "clip": 1.0, "epsilon": 2.0, "noise": "test"}},
    "secure": {"privacy": PRIVACY | {"noise": "secure"}},
    "other": {"seed": 6},
}


@pytest.fixture(scope="module")
def folders(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], Path]]:
    """By kind: a job and the folder of its run, which is finished."""
    found = {}
    for kind, changes in KINDS.items():
        job, out = job_of(digits, **changes), tmp_path_factory.mktemp(kind) / "run"
        run(checked(job), Solo(), out)
        found[kind] = job, out
    return found


@pytest.fixture
def copied(folders: dict[str, tuple[dict[str, Any], Path]], tmp_path: Path) -> Callable[..., tuple[Job, Path]]:
    """A job and a copy of the folder of its run."""

    def copy(kind: str = "plain", **changes: Any) -> tuple[Job, Path]:
        job, out = folders[kind]
        shutil.copytree(out, tmp_path / kind)
        return checked(job | changes), tmp_path / kind

    return copy


# --- editing -----------------------------------------------------------------------------------------------------


def edit(change: Callable[[bytes], bytes], name: str = LEDGER) -> Callable[[Path], None]:
    """Other bytes in a file."""

    def act(out: Path) -> None:
        (out / name).write_bytes(change((out / name).read_bytes()))

    return act


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    """Other lines in the ledger."""
    return edit(lambda text: b"".join(change(text.splitlines(keepends=True))))


def forge(change: Callable[[Any, list[Any]], None]) -> Callable[[Path], None]:
    """Another header and other lines, whose CRCs follow from each other again."""

    def act(out: Path) -> None:
        header, *rest = [json.loads(text) for text in (out / LEDGER).read_bytes().splitlines()]
        change(header, rest)
        before, written = 0, b""
        for values in (header, *rest):
            text, before = sealed({name: value for name, value in values.items() if name != "crc"}, before)
            written += text
        (out / LEDGER).write_bytes(written)

    return act


def about(**changes: Any) -> Callable[[Path], None]:
    """Other values in run.json; None: left out."""

    def act(out: Path) -> None:
        found = read_json(out / "run.json") | changes
        write_json(out / "run.json", {name: value for name, value in found.items() if value is not None})

    return act


def manifests(told: Any) -> Callable[[Path], None]:
    """Another word on the ledger in all checkpoints, where the newest may be missing otherwise."""

    def act(out: Path) -> None:
        for path in out.glob("checkpoint/*/manifest.json"):
            found = read_json(path)
            write_json(path, found | {"ledger": told(found["ledger"]) if callable(told) else told})

    return act


def alone(forged: Callable[[Path], None]) -> Callable[[Path], None]:
    """What is forged, and no other file that could tell."""

    def act(out: Path) -> None:
        forged(out)
        shutil.rmtree(out / "checkpoint")
        (out / "run.json").unlink()

    return act


def as_folder(out: Path) -> None:
    """A folder where the ledger was."""
    (out / LEDGER).unlink()
    (out / LEDGER).mkdir()


def put(where: Callable[[Any, list[Any]], Any], name: str, value: Any) -> Callable[[Path], None]:
    """A forged ledger with another value in its header, or in one of its lines."""
    return forge(lambda header, rest: where(header, rest).__setitem__(name, value))


def header(header: Any, rest: list[Any]) -> Any:
    return header


def release(header: Any, rest: list[Any]) -> Any:
    return header["release"]


def scaled(factor: float) -> Callable[[Path], None]:
    """A forged ledger with more noise, or less, in its header."""
    return forge(lambda header, rest: header.update(noise_multiplier=factor * header["noise_multiplier"]))


def fourth(header: Any, rest: list[Any]) -> Any:
    return rest[3]


SAID = "restore the file, or start anew without --resume"
# in the ledger, its lines, or one of the files that count them
EDITS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a byte of a line": (edit(lambda text: text.replace(b'"round": 3', b'"round": 2')), "line 5 .* its crc"),
    "delta": (edit(lambda text: text.replace(b'"delta": 0.0001', b'"delta": 0.001')), "line 1 .* its crc"),
    "other bytes": (edit(lambda text: bytes(range(256)) * 9), "line 1 is damaged"),
    "cut in a line": (edit(lambda text: text[:-5]), "ends with line 6, and .*run.json says that there is a line 7"),
    "last line cut": (lines(lambda found: found[:-1]), "ends with line 6, and .*run.json says that there is a line 7"),
    "a line missing": (lines(lambda found: [*found[:3], *found[4:]]), "line 4 is damaged"),
    "deleted": (lambda out: (out / LEDGER).unlink(), "cannot be read .* nobody knows what was released"),
    "a folder": (as_folder, "is no regular file; remove it, or put it back"),
    "an older one": (edit(lambda text: text.replace(b'"schema": 3', b'"schema": 1')), "has schema 1, and this"),
    "forged clients": (put(fourth, "clients", []), r"line 7 has crc \d+, and .*run.json says \d+"),
    "forged kind": (put(fourth, "clients", "some"), "line 5 is damaged .ValueError"),
    "run.json: a list": (about(ledger=[6]), r"run.json: ledger = \[6\]"),
    "run.json: a smaller epsilon": (about(epsilon_if_secret=0.5), r"epsilon_if_secret = 0\.5, and \d.* follows from"),
    "run.json: no epsilon": (about(epsilon_if_secret=None), r"epsilon_if_secret = None, and \d\.\d+ follows from"),
    "run.json: epsilon of a test": (about(epsilon=0.5), r"epsilon = 0\.5, and None follows from"),
    "run.json: other noise": (about(noise_multiplier=9.0), r"noise_multiplier = 9\.0, and 5\.0 follows from"),
    "run.json: forgets it": (about(ledger=None), "says nothing of .*ledger.jsonl, which counts its rounds"),
    "job.toml: other noise": (edit(lambda text: text.replace(b'noise = "test"', b'noise = "secure"'), "job.toml"),
        "job.toml: is not the job in line 1 of .*privacy.noise: 'test' before, 'secure' now"),
    "job.toml: none": (edit(lambda text: text.split(b"[privacy]")[0], "job.toml"),
        "job.toml: is not the job in line 1 of .*privacy.clip: 1.0 before, None now"),
    "nobody of those": (put(fourth, "clients", [800]), r"line 7 has crc \d+, and .*run.json says"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_what_is_edited_is_found(name: str, copied: Callable[..., tuple[Job, Path]]) -> None:
    """By the run that goes on, and by `mpifed show`, in words or as JSON."""
    edited, said = EDITS[name]
    job, out = copied(rounds=8)
    assert CliRunner().invoke(main, ["show", str(out)]).exit_code == 0
    edited(out)
    for options in ([], ["--json"]):
        shown = CliRunner().invoke(main, ["show", str(out), *options])
        assert (shown.exit_code, type(shown.exception)) == (3, SystemExit), shown.exception
    with pytest.raises(DataError, match=said) as caught:
        run(job, Solo(), out, resume=True)
    assert SAID in str(caught.value) or "schema" in said or "JSON" in str(caught.value) or "put it back" in said


# what only a run that goes on can tell: from its checkpoint, its job and its seed
RESUMED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "checkpoint: fewer": ("plain", manifests({"lines": 2, "crc": 0}), "line 3 .*checkpoint .* says 0"),
    "job.toml": ("plain", edit(lambda text: text.replace(b"delta = 0.0001", b"delta = 0.001"), "job.toml"),
        "job.toml: is not the job in line 1 of .*privacy.delta: 0.0001 before, 0.001 now"),
    "more noise": ("calibrated", alone(put(header, "noise_multiplier", 50.0)), "= 50.0, and .* 6 rounds"),
    **{
        f"noise times {factor}": ("calibrated", alone(scaled(factor)), r"line 1 has noise_multiplier = .* gives")
        for factor in (0.7, 0.99, 1.0005, 1.01, 1.3)
    },
    "less released": ("plain", alone(put(release, "rate", 0.5)), "line 1 says that rounds release other than this job"),
    "others": ("plain", alone(put(fourth, "clients", [1, 2, 800])), "has clients that there are not"),
    "other clients": ("plain", alone(put(fourth, "clients", [1, 2, 3])), r"line 5: .*\[1, 2, 3\] took part"),
    "a later round": ("plain", alone(put(fourth, "round", 10**12)), "line 5 is of round 1000000000000, 0 to 3"),

}  # fmt: skip


@pytest.mark.parametrize("name", RESUMED)
def test_what_a_resume_finds(name: str, copied: Callable[..., tuple[Job, Path]]) -> None:
    kind, edited, said = RESUMED[name]
    job, out = copied(kind, rounds=8, stop={"epsilon": 100.0})  # a budget, as noise was computed for other rounds
    edited(out)
    with pytest.raises(DataError, match=said):
        run(job, Solo(), out, resume=True)


def test_the_ledger_of_another_run(copied: Callable[..., tuple[Job, Path]]) -> None:
    """Solo, it is not what run.json says; with all the files that count its lines, it has another job."""
    (job, out), (_, other) = copied(rounds=8), copied("other")
    shutil.copy(other / LEDGER, out / LEDGER)
    with pytest.raises(DataError, match=r"run\.json says"):
        run(job, Solo(), out, resume=True)
    shutil.copy(other / "run.json", out / "run.json")
    with pytest.raises(DataError, match=r"job\.toml: is not the job in line 1 of .*seed: 6 before, 5 now"):
        run(job, Solo(), out, resume=True)
    shutil.copy(other / "job.toml", out / "job.toml")
    with pytest.raises(UsageError, match=r"--resume with another job .seed: 6 before, 5 now"):
        run(job, Solo(), out, resume=True)
