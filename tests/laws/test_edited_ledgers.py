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
    """A job of more rounds, with a budget, as noise was computed for others; and a copy of the folder of its run."""

    def copy(kind: str = "plain") -> tuple[Job, Path]:
        shutil.copytree(folders[kind][1], tmp_path / kind)
        return checked(folders[kind][0] | {"rounds": 8, "stop": {"epsilon": 100.0}}), tmp_path / kind

    return copy


def show(out: Path, *options: str) -> int:
    ended = CliRunner().invoke(main, ["show", str(out), *options])
    assert type(ended.exception) in (type(None), SystemExit), ended.exception
    return ended.exit_code


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


def checkpoints_say(told: Any) -> Edit:
    """Another word on the ledger in all checkpoints, where the newest may be missing otherwise."""

    def act(out: Path) -> None:
        for path in out.glob("checkpoint/*/manifest.json"):
            write_json(path, read_json(path) | {"ledger": told})

    return act


def without(*names: str) -> Edit:
    return lambda out: [shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink() for name in names]


def alone(*edits: Edit) -> Edit:
    """What is edited, and no other file that could tell."""
    return both(*edits, without("checkpoint", "run.json"))


def both(*edits: Edit) -> Edit:
    return lambda out: [act(out) for act in edits]


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


def first(lines: int) -> Edit:
    """The ledger, cut off after so many."""
    return edit(lambda text: b"".join(text.splitlines(True)[:lines]))


def last_epsilon(times: float) -> Edit:
    """Another epsilon in the history's last row."""

    def change(text: bytes) -> bytes:
        names, *rows = [line.split(b",") for line in text.splitlines()]
        column = names.index(b"epsilon")
        rows[-1][column] = b"" if times == math.inf else b"%r" % (times * float(rows[-1][column]))
        return b"".join(b",".join(row) + b"\n" for row in (names, *rows))

    return edit(change, "history.csv")


NO_PRIVACY = edit(lambda text: text.split(b"[privacy]")[0], "job.toml")
ENDS_EARLY = "ends with line 6, and .*run.json says that there is a line 7"
JOB_SAYS = "job.toml: was changed or damaged since the run ended"
HISTORY_SAYS = r"history.csv: epsilon = .* of round 6, and .* has"
# of a run that has ended: what is edited, and what is said where it goes on
ENDED: dict[str, tuple[Edit, str]] = {
    "a byte of a line": (replaced(b'"round": 3', b'"round": 2'), "line 5 .* its crc"),
    "delta": (replaced(b'"delta": 0.0001', b'"delta": 0.001'), "line 1 .* its crc"),
    "other bytes": (edit(lambda text: bytes(range(256)) * 9), "line 1 is damaged"),
    "cut in a line": (edit(lambda text: text[:-5]), ENDS_EARLY),
    "last line cut": (first(6), ENDS_EARLY),
    "a line missing": (edit(lambda text: re.sub(rb".*\"round\": 2.*\n", b"", text)), "line 4 is damaged"),
    "deleted": (without(LEDGER), "cannot be read .* nobody knows what was released"),
    "a folder": (both(without(LEDGER), lambda out: (out / LEDGER).mkdir()), "is no regular file; remove it"),
    "an older one": (replaced(b'"schema": 3', b'"schema": 1'), "has schema 1, and this"),
    "forged clients": (fifth(clients=[]), r"line 7 has crc \d+, and .*run.json says \d+"),
    "forged kind": (fifth(clients="some"), "line 5 is damaged .ValueError"),
    "nobody of those": (fifth(clients=[1, 800]), "line 5 is damaged .*: it has clients that there are not"),
    "run.json: a list": (about(ledger=[6]), r"run.json: ledger = \[6\]"),
    "run.json: a smaller epsilon": (about(epsilon_if_secret=0.5), r"secret = 0\.5, and \d.* follows from"),
    "run.json: no epsilon": (about(epsilon_if_secret=None), r"secret = None, and \d\.\d+ follows from"),
    "run.json: epsilon of a test": (about(epsilon=0.5), r"epsilon = 0\.5, and None follows from"),
    "run.json: other noise": (about(noise_multiplier=9.0), r"multiplier = 9\.0, and 5\.0 follows from"),
    "run.json: forgets it": (about(ledger=None), "says nothing of .*ledger.jsonl, which counts its rounds"),
    "run.json: what is private": (about(private=True), "private = True, and False follows from"),
    "run.json: who is protected": (about(protects="everybody"), "protects = everybody, and one record of one client"),
    "run.json: an epsilon more": (about(epsilon_colluding=0.1), r"colluding = 0\.1, and None follows from"),
    "all but run.json's epsilon": (
        both(without(LEDGER), NO_PRIVACY, about(delta=None, job_sha256=None)), "cannot be read .* nobody knows what",
    ),
    "job.toml: other noise": (replaced(b'noise = "test"', b'noise = "secure"', "job.toml"), JOB_SAYS),
    "job.toml: another seed": (replaced(b"seed = 5", b"seed = 4", "job.toml"), JOB_SAYS),
}  # fmt: skip
# what no other file tells, but for the job and its seed
ALONE: dict[str, tuple[str, Edit, str]] = {
    "job.toml": ("plain", replaced(b"delta = 0.0001", b"delta = 0.001", "job.toml"),
        r"job.toml: is not the job in line 1 of .* \(privacy.delta: 0.0001 before, 0.001 now\)"),
    "no privacy": ("plain", NO_PRIVACY, "job.toml: is not the job in line 1 of .*privacy.clip: 1.0 before, None now"),
    "shared noise": ("plain", forge(lambda rows: rows[0].update(shares=3)), "line 1 says that rounds release"),
    "one client more": ("plain", forge(lambda rows: rows[0].update(clients=9)), "line 1 says that rounds release"),
    "more noise": ("calibrated", forge(lambda rows: rows[0].update(noise_multiplier=50.0)), "= 50.0, and .* 6 rounds"),
    **{
        f"noise times {by}": ("calibrated",
            forge(lambda rows, by=by: rows[0].update(noise_multiplier=by * rows[0]["noise_multiplier"])),
            "line 1 has noise_multiplier = .* gives")
        for by in (0.7, 0.99, 1.0005, 1.01, 1.3)
    },
    "less released": ("plain", forge(lambda rows: rows[0]["release"].update(rate=0.5)),
        "line 1 says that rounds release other than this job"),
    "other clients": ("plain", fifth(clients=[1, 2, 3]), r"line 5: .*\[1, 2, 3\] took part"),
    "a later round": ("plain", fifth(round=10**12), "line 5 is of round 1000000000000, 0 to 3"),
}  # fmt: skip
# where no file counts the last lines, but the history's last row follows from them
AFTER_A_KILL: dict[str, tuple[Edit, str]] = {
    "cut, but for the checkpoint": (both(first(3), without("history.csv")),
        "ends with line 3, and .*round.* says that there is a line 4"),
    "all lines cut": (first(1), "has 0 rounds, and .*history.csv has round 6"),
    "cut to the checkpoint": (first(4), "has 3 rounds, and .* round 6"),
    **{f"epsilon times {by}": (last_epsilon(by), HISTORY_SAYS) for by in (0.5, 1.5, math.inf)},
    "another seed": (replaced(b"seed = 5", b"seed = 4", "job.toml"), "is not the job .*seed: 5 before, 4 now"),
}  # fmt: skip
CASES: dict[str, tuple[str, Edit, Edit, str]] = {
    **{name: ("plain", both(), *case) for name, case in ENDED.items()},
    **{f"alone: {name}": (kind, both(), alone(edited), said) for name, (kind, edited, said) in ALONE.items()},
    **{f"killed: {name}": ("secure", killed, *case) for name, case in AFTER_A_KILL.items()},
    "no digests": ("secure", about(digests=None), last_epsilon(0.5), HISTORY_SAYS),
}


@pytest.mark.parametrize(("kind", "ended", "edited", "said"), CASES.values(), ids=CASES)
def test_what_is_edited_is_found(kind: str, ended: Edit, edited: Edit, said: str, copied: Copied) -> None:
    """By the run that goes on, and by `mpifed show`, in words or as JSON."""
    job, out = copied(kind)
    ended(out)
    assert show(out) == 0
    edited(out)
    code = 3 if (out / "run.json").exists() else 0  # else it says no more than that
    assert show(out) == show(out, "--json") == code
    with pytest.raises(DataError, match=said) as caught:
        run(job, Solo(), out, resume=True)
    assert re.search("restore the file, or start anew without --resume|put it back|resume with that", str(caught.value))


def test_a_checkpoint_that_says_less(copied: Copied) -> None:
    """Which only a run that goes on reads, once the run has ended."""
    job, out = copied()
    checkpoints_say({"lines": 2, "crc": 0})(out)
    assert show(out) == 0
    with pytest.raises(DataError, match=r"line 3 .*checkpoint .* says 0"):
        run(job, Solo(), out, resume=True)


def test_the_ledger_of_another_run(copied: Copied) -> None:
    """It has another job than job.toml, and with that than what is to go on."""
    (job, out), (_, other) = copied(), copied("other")
    for name, error, said in (
        (LEDGER, DataError, r"job\.toml: is not the job in line 1 of .*seed: 6 before, 5 now"),
        ("run.json", DataError, JOB_SAYS),
        ("job.toml", UsageError, r"--resume with another job .seed: 6 before, 5 now"),
    ):
        shutil.copy(other / name, out / name)
        with pytest.raises(error, match=said):
            run(job, Solo(), out, resume=True)
