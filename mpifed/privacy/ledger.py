"""The ledger of a private run: what every round releases, written before it is run; on rank 0.

`ledger.jsonl` begins with a header: the job as run and its noise multiplier. A line for each round follows, which is on
the disk before the round begins, so that after a kill at any moment a release too many may be counted, but never one
too few. Where noise is secure, a round that is run again after a resume is another release and another line. With
noise = "test" it has the same bits, and so its line counts once. A round that too many clients leave is
void, and run again with the uploads of others: each attempt is a release with a line of its own.

What is read on a resume must agree: the lines with each other, with checkpoint, run.json and model.safetensors (see
`mpifed.privacy.ledger_file`, also for what is not detected), the header with the job
(`mpifed.privacy.calibration`), and the participating clients with the job's seed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from mpifed.algorithms.algorithm import Algorithm
from mpifed.core.errors import DataError
from mpifed.core.round import Round
from mpifed.core.tables import ReadOnlyTable
from mpifed.files.write import append, replaced, sync
from mpifed.job.job import Job
from mpifed.job.participation import round_of
from mpifed.privacy.calibration import budget_of
from mpifed.privacy.ledger_file import LEDGER, REMEDY, Header, LedgerHead, ReleasedRound, linked, read_ledger
from mpifed.privacy.spending import Costs, Spending


def write_header(run_dir: Path, header: Header) -> None:
    """Write a ledger without rounds."""
    with replaced(run_dir / LEDGER) as file:
        file.write(linked(header, "")[0])
    sync(run_dir)


class SavedProgress(Protocol):
    """What a checkpoint says of a private run: rounds done, void attempts at the next one, and the ledger's `Head`."""

    @property
    def round(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def ledger(self) -> ReadOnlyTable | None: ...


class Ledger:
    """Counts the releases of a run, and their epsilons; its algorithm must have its noise multiplier."""

    def __init__(self, run_dir: Path, job: Job, algorithm: Algorithm, saved: SavedProgress | None = None) -> None:
        """Reads the ledger of `run_dir`; `saved` is the progress of a run that is resumed from a checkpoint.

        Raises DataError when it is damaged, or does not agree with the checkpoint or the job.
        """
        self._dir, self._path, self._job, self._algorithm = run_dir, run_dir / LEDGER, job, algorithm
        problem = algorithm.problem
        privacy = problem.private
        self.secure = privacy.noise == "secure"
        self.spending = Spending(privacy, problem.clients)
        self.refusal = ""  # why the budget allows no further round
        self._budget = budget_of(job)
        self._allowed = range(0)  # rounds that are surely within it, each run once
        contents = read_ledger(run_dir)
        lines, self.head = contents.lines, contents.head
        done, attempt = (saved.round, saved.attempt) if saved else (0, 0)
        if saved:
            contents.compare(f"the checkpoint of round {done} in {run_dir}", saved.ledger)
        self._check(lines, done)
        if contents.torn:
            self._mend(lines, done)
        self._written = Counter(line.round for line in lines)  # how often each round is in the file
        self._noted = Counter({done: attempt})  # how often it was run since the checkpoint
        if not self.secure:
            again = [line for line in lines if line.round == done][:attempt]
            lines = [line for line in lines if line.round < done] + again
        for line in lines:
            self._add(line)

    def _check(self, lines: list[ReleasedRound], done: int) -> None:
        """DataError where a line is of a round that this job cannot have run, or a line is missing."""
        upto = 0  # every round below has a line
        for number, line in enumerate(lines, 2):
            if not 0 <= line.round <= upto:
                raise DataError(f"{self._path}: line {number} is of round {line.round}, 0 to {upto} expected; {REMEDY}")
            upto = max(upto, line.round + 1)
            expected = self._counted(round_of(self._job, self.spending.clients, line.round))
            # an incomplete line was replaced by one with all clients
            if line.clients is not None and line.clients != expected:
                raise DataError(
                    f"{self._path}: line {number}: in round {line.round} clients {_shown(line.clients)} took part, and "
                    f"by the job's seed {_shown(expected)} do; {REMEDY}"
                )
        if upto < done:
            raise DataError(
                f"{self._path}: has no line of round {upto}, and the checkpoint says that {done} are done; {REMEDY}"
            )

    def _mend(self, lines: list[ReleasedRound], done: int) -> None:
        """Replace an incomplete last line: with secure noise the round may have been run, with any of the clients."""
        whole, newline, _ = self._path.read_bytes().rpartition(b"\n")
        if self.secure:
            lines.append(ReleasedRound(lines[-1].round + 1 if lines else done, None))
        with replaced(self._path) as file:
            file.write(whole + newline + (self._link(lines[-1]) if self.secure else b""))

    def _link(self, line: ReleasedRound) -> bytes:
        text, sha256 = linked(line, self.head.sha256)
        self.head = LedgerHead(self.head.lines + 1, sha256)
        return text

    def note(self, now: Round) -> None:
        """Write the line of round `now`, which is about to be run."""
        line = ReleasedRound(now.index, self._counted(now))
        self._noted[line.round] += 1
        if self.secure or self._noted[line.round] > self._written[line.round]:
            append(self._path, self._link(line), self.secure)
            self._written[line.round] += 1
        self._allowed = range(now.index + 1, self._allowed.stop)
        self._add(line)

    def _counted(self, now: Round) -> list[int] | None:
        """The clients that are counted in a round; None: all, as where participation is secret."""
        all_counted = now.present.all() or self._algorithm.released(now.index).by_chance
        return None if all_counted else np.flatnonzero(now.present).tolist()

    def _add(self, line: ReleasedRound) -> None:
        present = np.full(self.spending.clients, line.clients is None)
        if line.clients is not None:
            present[line.clients] = True
        self.spending.add(self._algorithm.released(line.round), present)

    def sync(self) -> LedgerHead:
        """Flush the file to the disk; its head, which other files record."""
        sync(self._path)
        return self.head

    def allows(self, now: Round) -> bool:
        """Whether round `now` keeps every client within the budget.

        The participating clients of later rounds are known, so all are looked at together, and again after a void one.
        """
        budget, left = self._budget, self._job.rounds - now.index
        if budget is None or now.index in self._allowed:
            return True

        def within(count: int) -> bool:
            return budget.cost(self._after(now.index, count)) <= budget.epsilon  # nan is over it

        self._allowed = range(now.index, now.index + (left if within(left) else most_within(within, left)))
        if self._allowed:
            return True
        after, privacy = self._after(now.index, 1), self.spending.privacy
        self.refusal = (
            f"{budget.key} = {budget.epsilon:g}: {budget.cost(self.spending):.4g} is spent after "
            f"{now.index} rounds by the client that spent most; with another round it would be "
            f"{budget.cost(after):.4g}, at delta = {privacy.delta:g}"
        )
        whole = budget.cost(self._after(now.index, left))
        if left > 1 and math.isfinite(whole):
            self.refusal += f", and with all {self._job.rounds} {math.ceil(whole * 1000) / 1000:g}"
        if budget.by_paper:
            self.refusal += f" by the paper's formula; [stop] epsilon, which is rigorous, would be {after.worst():.4g}"
        return False

    def _after(self, index: int, count: int) -> Spending:
        """The spending after `count` more rounds from `index` on, each run once."""
        after = self.spending.copy()
        for ahead in range(index, index + count):
            after.add(self._algorithm.released(ahead), round_of(self._job, after.clients, ahead).present)
        return after

    def columns(self) -> dict[str, float | None]:
        """The epsilons so far, by column; None where infinite."""
        return finite(self.spending.costs())


def most_within(within: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` for which the monotone condition `within(count)` holds; 0 if none."""
    low, high = 0, 1
    while high <= most and within(high):
        low, high = high, high + min(high, max(most - high, 1))
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def finite(costs: Costs) -> dict[str, float | None]:
    """The epsilons by column; None where infinite or not defined."""
    return {name: value if math.isfinite(value) else None for name, value in costs._asdict().items()}


def _shown(clients: list[int] | None) -> str:
    return "all" if clients is None else f"[{', '.join(map(str, clients[:8]))}{', ...' if len(clients) > 8 else ''}]"
