"""The ledger of a private run: what every round releases, written down before it is played; on rank 0.

`ledger.jsonl` begins with a header: the job as run and its noise multiplier. A line for each round follows, which is on
the disk before the round begins, so that a kill at any moment may count a release too many, and never one too few.
Where noise is secure, a round that is played again after a resume is another release and another line. With
noise = "test" it has the same bits, and so the line that is there counts once. A round that too many clients leave is
void, and played again with the others' answers: each attempt is a release with a line of its own.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.exchange import Algorithm
from mpifed.core.round import Round
from mpifed.run.checkpoint import sync_folder
from mpifed.run.history import aside
from mpifed.run.spending import Costs, Spending, rounded

LEDGER = "ledger.jsonl"
TABLE = "privacy.csv"
SCHEMA = 1
_EVERYBODY = "all"
_MANY = 64  # groups of clients, above which the table's epsilons are coarser bounds that share their curves


class Header(NamedTuple):
    """What holds for the whole run, however often it is resumed."""

    job: dict[str, Any]  # all its tables
    noise_multiplier: float


class Line(NamedTuple):
    """A round that was played, or was about to be."""

    round: int
    clients: list[int] | None  # who took part; None: everybody counts


def write_header(run_dir: Path, header: Header) -> None:
    """A ledger without any round."""
    text = json.dumps({"schema": SCHEMA, **header._asdict()}) + "\n"
    with aside(run_dir / LEDGER) as temporary:
        temporary.write_text(text, encoding="utf-8")
    sync_folder(run_dir)


def read_header(run_dir: Path) -> Header:
    """The header of a ledger.

    Raises
    ------
    DataError
        when there is no ledger, or it has no header that this version reads.
    """
    return _read(run_dir / LEDGER)[0]


class Ledger:
    """Counts what is released, and knows what it costs; of a run whose algorithm has its noise multiplier."""

    def __init__(self, run_dir: Path, algorithm: Algorithm, done: int = 0, attempt: int = 0) -> None:
        """Reads the ledger of `run_dir`, of which `done` rounds stand in the checkpoint, and `attempt` void ones.

        Raises
        ------
        DataError
            when it is damaged, or lacks a round of the checkpoint.
        """
        self._dir, self._path, self._algorithm = run_dir, run_dir / LEDGER, algorithm
        self._private: Any = algorithm
        problem = algorithm.problem
        self.secure = problem.privacy.noise == "secure"
        self.spending = Spending(problem.privacy, problem.clients)
        self.refusal = ""  # why the budget allows no further round
        self._free = 0  # rounds that it surely does allow
        _, lines, torn = _read(self._path)
        if torn:
            self._mend(lines, done)
        self._written = Counter(line.round for line in lines)  # how often each round is in the file,
        self._noted = Counter({done: attempt})  # and how often it was played since the checkpoint's rounds
        missing = sorted(set(range(done)) - self._written.keys())
        if missing:
            raise DataError(
                f"{self._path}: has no line of round {missing[0]}, and the checkpoint says that {done} are played: "
                "what was released is not known; restore the file, or start anew without --resume, into another folder"
            )
        if not self.secure:
            again = [line for line in lines if line.round == done][:attempt]
            lines = [line for line in lines if line.round < done] + again
        for line in lines:
            self._add(line)

    def _mend(self, lines: list[Line], done: int) -> None:
        """A torn last line is a round that may have been played, nobody knows by whom; by a test it is not yet."""
        if self.secure:
            lines.append(Line(lines[-1].round + 1 if lines else done, None))
        whole = self._path.read_bytes().splitlines(keepends=True)[:-1]
        added = [_text(lines[-1]).encode()] if self.secure else []
        with aside(self._path) as temporary:
            temporary.write_bytes(b"".join([*whole, *added]))

    def note(self, now: Round) -> None:
        """Write down that round `now` is about to be played."""
        everybody = now.present.all() or self._private.released(now.index).by_chance
        line = Line(now.index, None if everybody else np.flatnonzero(now.present).tolist())
        self._noted[line.round] += 1
        if self.secure or self._noted[line.round] > self._written[line.round]:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(_text(line))
                file.flush()
                if self.secure:
                    os.fdatasync(file.fileno())
            self._written[line.round] += 1
        self._add(line)

    def _add(self, line: Line) -> None:
        present = np.full(self.spending.clients, line.clients is None)
        if line.clients is not None:
            present[line.clients] = True
        self.spending.add(self._private.released(line.round), present)

    def sync(self) -> None:
        """What was noted is on the disk: before a checkpoint relies on it."""
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())

    def allows(self, now: Round, budget: float, rounds: int) -> bool:
        """Whether round `now`, of so many, keeps every client within the budget.

        How many rounds they can all take part in is found once, and looked at again when these are played.
        """
        if self._free == 0:
            self._free = self._affordable(now.index, budget, rounds - now.index)
        if self._free:
            self._free -= 1
            return True
        after = self.spending.copy()
        after.add(self._private.released(now.index), now.present)
        if after.worst() <= budget:
            return True
        self.refusal = (
            f"[stop] epsilon = {budget:g}: {self.spending.worst():.4g} is spent after {now.index} rounds by the client "
            f"that spent most; with another round it would be {after.worst():.4g}, at delta = {after.privacy.delta:g}"
        )
        return False

    def _affordable(self, index: int, budget: float, most: int) -> int:
        """How many rounds from `index` on, up to `most`, are within the budget if everybody takes part in all."""
        everybody = np.ones(self.spending.clients, dtype=bool)

        def within(count: int) -> bool:
            after = self.spending.copy()
            for ahead in range(count):
                after.add(self._private.released(index + ahead), everybody)
            return after.worst() <= budget

        return most_within(within, most)

    def columns(self) -> dict[str, float | None]:
        """The epsilons so far, None where infinite."""
        return finite(self.spending.costs())

    def write_table(self) -> None:
        """privacy.csv: what each client has released."""
        spending, groups = self.spending, self.spending.groups()
        quick = len(groups) > _MANY
        accountant = "rdp, rounded" if quick else spending.privacy.accountant
        rows: list[tuple[Any, ...]] = []
        for group in groups:
            spent = group.spent
            bound = spending.epsilon_of(rounded(spent) if quick else spent, "rdp" if quick else None)
            epsilons = bound, spending.unamplified_of(spent)
            count = sum(spent.values())
            cells = [_cell(one) for one in epsilons]
            rows += [(client, spending.rounds[client], count, *cells, accountant) for client in group.clients.tolist()]
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["client", "rounds", "mechanisms", "epsilon", "epsilon_unamplified", "accountant"])
        table.writerows(rows[i] for i in np.argsort([row[0] for row in rows]))
        with aside(self._dir / TABLE) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8")


def most_within(within: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` for which `within(count)`, which never holds again once it does not; 0: none."""
    low, high = 0, 1
    while high <= most and within(high):
        low, high = high, high + min(high, max(most - high, 1))
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def finite(costs: Costs) -> dict[str, float | None]:
    """By column; None stands for what is infinite or not said."""
    return {name: value if math.isfinite(value) else None for name, value in costs._asdict().items()}


def _cell(value: float) -> str:
    return repr(value) if math.isfinite(value) else ""


def _text(line: Line) -> str:
    return json.dumps({"round": line.round, "clients": _EVERYBODY if line.clients is None else line.clients}) + "\n"


def _read(path: Path) -> tuple[Header, list[Line], bool]:
    """(header, rounds, whether the last line is torn)."""
    try:
        whole, _, rest = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}), and without it nobody knows what was released; restore the "
            "file, or start anew without --resume, into another folder"
        ) from error
    first, *others = whole.split(b"\n")
    try:
        header = json.loads(first)
        found = Header(header["job"], float(header["noise_multiplier"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, 1) from error
    if header.get("schema") != SCHEMA:
        raise DataError(f"{path}: has schema {header.get('schema')}, and this version reads {SCHEMA}; resume with that")
    return found, [_line(path, number, text) for number, text in enumerate(others, 2)], bool(rest)


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        found = json.loads(text)
        clients = found["clients"]
        return Line(int(found["round"]), None if clients == _EVERYBODY else [int(client) for client in clients])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, number) from error


def _damaged(path: Path, number: int) -> DataError:
    return DataError(
        f"{path}: line {number} is damaged, and what was released is not known; restore the file, or start anew "
        "without --resume, into another folder"
    )
