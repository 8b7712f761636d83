"""A run folder in which somebody has edited something: what agrees no longer ends with code 3, and says where."""

from __future__ import annotations

import json
import math
import re
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

PRIVACY = {"delta": 1e-4, "clip": 1.0, "noise_multiplier": 5.0, "noise": "test"}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "calibrated": {"privacy": {"delta": 1e-4, "clip": 1.0, "epsilon": 2.0, "noise": "test"}},
    "other": {"seed": 6},
    "secure": {"privacy": PRIVACY | {"noise": "secure"}, "record": {"evaluate_every": 1, "checkpoint_every": 3}},
}
Edit = Callable[[Path], object]
Copied = Callable[..., tuple[Job, Path]]


@pytest.fixture(scope="module")
def folders(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], Path]]:
    """By kind: a job, with three of eight clients in each round, and the folder of its run, which is finished."""
    base = {
        "rounds": 6, "seed": 5, "model": {"name": "softmax", "bias": False}, "participation": {"clients_per_round": 3},
        "privacy": PRIVACY, "aggregation": {"bounds": {"noise": 64.0}},
        "record": {"evaluate_every": 0, "checkpoint_every": 3},
    }  # fmt: skip
    found = {}
    for kind, changes in KINDS.items():
        job = table(digits, {"name": "private_algorithms:Noise"}, **(base | changes))
        found[kind] = job, tmp_path_factory.mktemp(kind) / "run"
        run(checked(job), Solo(), found[kind][1])
    return found


@pytest.fixture
def copied(folders: dict[str, tuple[dict[str, Any], Path]], tmp_path: Path) -> Copied:
    """A job and a copy of the folder of its run."""

    def copy(kind: str = "plain", **changes: Any) -> tuple[Job, Path]:
        shutil.copytree(folders[kind][1], tmp_path / kind)
        return checked(folders[kind][0] | changes), tmp_path / kind

    return copy


# --- editing -----------------------------------------------------------------------------------------------------


def edit(change: Callable[[bytes], bytes], name: str = LEDGER) -> Edit:
    """Other bytes in a file."""
    return lambda out: (out / name).write_bytes(change((out / name).read_bytes()))


def replaced(before: bytes, after: bytes, name: str = LEDGER) -> Edit:
    return edit(lambda text: text.replace(before, after), name)


def forge(change: Callable[[list[Any]], object]) -> Edit:
    """Another header and other lines, whose CRCs follow from each other again."""

    def forged(text: bytes) -> bytes:
        rows, before, written = [json.loads(line) for line in text.splitlines()], 0, b""
        change(rows)
        for values in rows:
            line, before = sealed({name: value for name, value in values.items() if name != "crc"}, before)
            written += line
        return written

    return edit(forged)


def fifth(**values: Any) -> Edit:
    """A forged line of round 3."""
    return forge(lambda rows: rows[4].update(values))


def about(**changes: Any) -> Edit:
    """Other values in run.json; None: left out."""

    def act(out: Path) -> None:
        found = read_json(out / "run.json") | changes
        write_json(out / "run.json", {name: value for name, value in found.items() if value is not None})

    return act


def in_checkpoints(told: Any) -> Edit:
    """Another word on the ledger in all checkpoints, where the newest may be missing otherwise."""

    def act(out: Path) -> None:
        for path in out.glob("checkpoint/*/manifest.json"):
            write_json(path, read_json(path) | {"ledger": told})

    return act


def alone(forged: Edit) -> Edit:
    """What is forged, and no other file that could tell."""

    def act(out: Path) -> None:
        forged(out)
        shutil.rmtree(out / "checkpoint")
        (out / "run.json").unlink()

    return act


def as_folder(out: Path) -> None:
    (out / LEDGER).unlink()
    (out / LEDGER).mkdir()


ENDS_EARLY = "ends with line 6, and .*run.json says that there is a line 7"
SAID = "restore the file, or start anew without --resume"
# in the ledger, its lines, or one of the files that count them: what is said, and the remedy
EDITS: dict[str, tuple[Edit, str, str]] = {
    "a byte of a line": (replaced(b'"round": 3', b'"round": 2'), "line 5 .* its crc", SAID),
    "delta": (replaced(b'"delta": 0.0001', b'"delta": 0.001'), "line 1 .* its crc", SAID),
    "other bytes": (edit(lambda text: bytes(range(256)) * 9), "line 1 is damaged", SAID),
    "cut in a line": (edit(lambda text: text[:-5]), ENDS_EARLY, SAID),
    "last line cut": (edit(lambda text: b"".join(text.splitlines(True)[:-1])), ENDS_EARLY, SAID),
    "a line missing": (edit(lambda text: re.sub(rb".*\"round\": 2.*\n", b"", text)), "line 4 is damaged", SAID),
    "deleted": (lambda out: (out / LEDGER).unlink(), "cannot be read .* nobody knows what was released", SAID),
    "a folder": (as_folder, "is no regular file; remove it, or put it back", ""),
    "an older one": (replaced(b'"schema": 3', b'"schema": 1'), "has schema 1, and this", "resume with that"),
    "forged clients": (fifth(clients=[]), r"line 7 has crc \d+, and .*run.json says \d+", SAID),
    "forged kind": (fifth(clients="some"), "line 5 is damaged .ValueError", SAID),
    "nobody of those": (fifth(clients=[1, 800]), "line 5 is damaged .*: it has clients that there are not", SAID),
    "run.json: a list": (about(ledger=[6]), r"run.json: ledger = \[6\]", SAID),
    "run.json: a smaller epsilon": (about(epsilon_if_secret=0.5), r"secret = 0\.5, and \d.* follows from", SAID),
    "run.json: no epsilon": (about(epsilon_if_secret=None), r"secret = None, and \d\.\d+ follows from", SAID),
    "run.json: epsilon of a test": (about(epsilon=0.5), r"epsilon = 0\.5, and None follows from", SAID),
    "run.json: other noise": (about(noise_multiplier=9.0), r"multiplier = 9\.0, and 5\.0 follows from", SAID),
    "run.json: forgets it": (about(ledger=None), "says nothing of .*ledger.jsonl, which counts its rounds", SAID),
    "job.toml: other noise": (replaced(b'noise = "test"', b'noise = "secure"', "job.toml"),
        "job.toml: is not the job in line 1 of .*'noise': 'test'.* and .*'noise': 'secure'.* now", SAID),
    "job.toml: none": (edit(lambda text: text.split(b"[privacy]")[0], "job.toml"),
        "job.toml: is not the job in line 1 of .*'clip': 1.0.* and None now", SAID),
}  # fmt: skip


@pytest.mark.parametrize(("edited", "said", "remedy"), EDITS.values(), ids=EDITS)
def test_what_is_edited_is_found(edited: Edit, said: str, remedy: str, copied: Copied) -> None:
    """By the run that goes on, and by `mpifed show`, in words or as JSON."""
    job, out = copied(rounds=8)
    assert CliRunner().invoke(main, ["show", str(out)]).exit_code == 0
    edited(out)
    for options in ([], ["--json"]):
        shown = CliRunner().invoke(main, ["show", str(out), *options])
        assert (shown.exit_code, type(shown.exception)) == (3, SystemExit), shown.exception
    with pytest.raises(DataError, match=said) as caught:
        run(job, Solo(), out, resume=True)
    assert remedy in str(caught.value)


# what only a run that goes on can tell: from its checkpoint, its job and its seed
RESUMED: dict[str, tuple[str, Edit, str]] = {
    "checkpoint: fewer": ("plain", in_checkpoints({"lines": 2, "crc": 0}), "line 3 .*checkpoint .* says 0"),
    "job.toml": ("plain", replaced(b"delta = 0.0001", b"delta = 0.001", "job.toml"),
        "job.toml: is not the job in line 1 of .*'delta': 0.0001.* and .*'delta': 0.001.* now"),
    "more noise": ("calibrated", alone(forge(lambda rows: rows[0].update(noise_multiplier=50.0))),
        "= 50.0, and .* 6 rounds"),
    **{
        f"noise times {by}": ("calibrated",
            alone(forge(lambda rows, by=by: rows[0].update(noise_multiplier=by * rows[0]["noise_multiplier"]))),
            "line 1 has noise_multiplier = .* gives")
        for by in (0.7, 0.99, 1.0005, 1.01, 1.3)
    },
    "less released": ("plain", alone(forge(lambda rows: rows[0]["release"].update(rate=0.5))),
        "line 1 says that rounds release other than this job"),
    "other clients": ("plain", alone(fifth(clients=[1, 2, 3])), r"line 5: .*\[1, 2, 3\] took part"),
    "a later round": ("plain", alone(fifth(round=10**12)), "line 5 is of round 1000000000000, 0 to 3"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "edited", "said"), RESUMED.values(), ids=RESUMED)
def test_what_a_resume_finds(kind: str, edited: Edit, said: str, copied: Copied) -> None:
    job, out = copied(kind, rounds=8, stop={"epsilon": 100.0})  # a budget, as noise was computed for other rounds
    edited(out)
    with pytest.raises(DataError, match=said):
        run(job, Solo(), out, resume=True)


def test_the_ledger_of_another_run(copied: Copied) -> None:
    """Solo, it is not what run.json says; with all the files that count its lines, it has another job."""
    (job, out), (_, other) = copied(rounds=8), copied("other")
    for name, error, said in (
        (LEDGER, DataError, r"run\.json says"),
        ("run.json", DataError, r"job\.toml: is not the job in line 1 of .*seed: 6 before, 5 now"),
        ("job.toml", UsageError, r"--resume with another job .seed: 6 before, 5 now"),
    ):
        shutil.copy(other / name, out / name)
        with pytest.raises(error, match=said):
            run(job, Solo(), out, resume=True)


def killed(out: Path) -> None:
    """As a run leaves its folder that is killed after round 6, with a checkpoint of round 3."""
    unknown = dict.fromkeys(("exit", "ended", "seconds_per_round", "cpu_s", "peak_rss_bytes", "exchanges"))
    found = {name: value for name, value in read_json(out / "run.json").items() if not name.startswith("epsilon")}
    counted = {"lines": 0, "crc": json.loads((out / LEDGER).read_text().splitlines()[0])["crc"]}
    found |= {**unknown, "rounds": 0, "ledger": counted}
    write_json(out / "run.json", {name: found[name] for name in found if name != "digests"})
    for path in out.glob("checkpoint/*/manifest.json"):
        if read_json(path)["round"] != 3:
            shutil.rmtree(path.parent)


def epsilon_of_the_last(times: float) -> Edit:
    """Another epsilon in the history's last row."""

    def change(text: bytes) -> bytes:
        names, *rows = [line.split(b",") for line in text.splitlines()]
        column = names.index(b"epsilon")
        rows[-1][column] = b"" if times == math.inf else b"%r" % (times * float(rows[-1][column]))
        return b"".join(b",".join(row) + b"\n" for row in (names, *rows))

    return edit(change, "history.csv")


def without_a_history(cut: Edit) -> Edit:
    """What is cut off, where no row has been measured."""

    def act(out: Path) -> None:
        cut(out)
        (out / "history.csv").unlink()

    return act


AFTER_A_KILL = {
    "cut, but for the checkpoint": (without_a_history(edit(lambda text: b"".join(text.splitlines(True)[:3]))),
        "ends with line 3, and .*round.* says that there is a line 4"),
    "no epsilon": (epsilon_of_the_last(math.inf), r"history.csv: epsilon = inf of round 6, and .* has"),
    "all lines cut": (edit(lambda text: text.splitlines(True)[0]), "has 0 rounds, and .*history.csv has round 6"),
    "cut to the checkpoint": (edit(lambda text: b"".join(text.splitlines(True)[:4])), "has 3 rounds, and .* round 6"),
    "a smaller epsilon": (epsilon_of_the_last(0.5), r"history.csv: epsilon = .* of round 6, and .* has"),
    "a larger epsilon": (epsilon_of_the_last(1.5), r"history.csv: epsilon = .* of round 6, and .* has"),
}  # fmt: skip


@pytest.mark.parametrize(("edited", "said"), AFTER_A_KILL.values(), ids=AFTER_A_KILL)
def test_what_is_edited_after_a_kill(edited: Edit, said: str, copied: Copied) -> None:
    """No file counts the last lines, but the history's last row follows from them."""
    job, out = copied("secure", rounds=8)
    killed(out)
    shown = CliRunner().invoke(main, ["show", str(out)])
    assert shown.exit_code == 0, shown.output
    edited(out)
    shown = CliRunner().invoke(main, ["show", str(out)])
    assert (shown.exit_code, type(shown.exception)) == (3, SystemExit), shown.exception
    with pytest.raises(DataError, match=said):
        run(job, Solo(), out, resume=True)
