"""The ledger of a private run: what every round releases, written before it is run; on rank 0.

`ledger.jsonl` begins with a header: the job as run, its noise, and what each round releases. A line for each round
follows, which is on the disk before the round begins, so that after a kill at any moment a release too many may be
counted, but never one too few. Where noise is secure, a round that is run again after a resume is another release and
another line. With noise = "test" it has the same bits, and so its line counts once. A round that too many clients leave
is void, and run again with the uploads of others: each attempt is a release with a line of its own.

What is read on a resume must agree: the lines with each other, with checkpoint and run.json (see
`mpifed.privacy.ledger_file`, also for what is not detected), the header with the job and its data
(`mpifed.privacy.calibration`), and the participating clients with the job's seed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from mpifed.algorithms.algorithm import Algorithm
from mpifed.core.errors import DataError
from mpifed.core.round import Round
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.history import history_so_far
from mpifed.files.write import append, replaced, sync
from mpifed.job.job import Job
from mpifed.job.participation import round_of
from mpifed.privacy import protection
from mpifed.privacy.calibration import budget_of, rounds_within, spending_of
from mpifed.privacy.ledger_file import LEDGER, REMEDY, SCHEMA, ReleasedRound, header_of, read_ledger, sealed
from mpifed.privacy.spending import Spending


class Ledger:
    """Counts the releases of a run, and their epsilons; its algorithm must have its noise multiplier."""

    def __init__(
        self, run_dir: Path, job: Job, settings: Table, algorithm: Algorithm, anew: bool,
        saved: tuple[int, int, ReadOnlyTable | None] | None = None,
    ) -> None:  # fmt: skip
        """Begin the ledger of `run_dir` with the job's `settings` if `anew`, else read it.

        `saved` is what a checkpoint says from which the run is resumed: rounds done, void attempts at the next one, and
        the ledger's length and last CRC. Raises DataError when the ledger is damaged, or does not agree with that or
        with the job.
        """
        self._path, self._job = run_dir / LEDGER, job
        self.spending = Spending.of(algorithm)
        self.secure = self.spending.privacy.noise == "secure"
        self.shares = protection.shares(job, algorithm.problem.clients)
        self.refusal = ""  # why the budget allows no further round
        self._allowed = range(0)  # rounds that are surely within the budget, each run once
        header = header_of(settings, self.spending, self.shares)
        if anew:
            with replaced(self._path) as file:
                file.write(sealed({"schema": SCHEMA, **header.model_dump()}, 0)[0])
            sync(run_dir)
        found = read_ledger(run_dir)
        lines, self._crc, self._lines = found.lines, found.crcs[-1], len(found.lines)
        releases = [(each.clients, each.shares, each.release) for each in (found.header, header)]
        if releases[0] != releases[1]:
            raise DataError(f"{self._path}: line 1 says that rounds release other than this job's do; {REMEDY}")
        done, attempt, counted = saved or (0, 0, None)
        if saved:
            found.compare(f"the checkpoint of round {done} in {run_dir}", counted)
            found.follow(run_dir, history_so_far(run_dir))
        self._check(lines, done)
        if found.torn:
            text = self._path.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            if self.secure:  # the round may have been run, with any of the clients
                lines.append(ReleasedRound(round=lines[-1].round + 1 if lines else done, clients="all"))
                whole += self._sealed(lines[-1])
            with replaced(self._path) as file:
                file.write(whole)
        self._written = Counter(line.round for line in lines)  # how often each round is in the file
        self._noted = Counter({done: attempt})  # how often it was run since the checkpoint
        if not self.secure:
            again = [line for line in lines if line.round == done][:attempt]
            lines = [line for line in lines if line.round < done] + again
        for line in lines:
            self.spending = line.added(self.spending)

    def _check(self, lines: list[ReleasedRound], done: int) -> None:
        """DataError where a line is of a round that this job cannot have run, or a line is missing."""
        upto, wrong = 0, ""  # every round below has a line
        for number, line in enumerate(lines, 2):
            expected = self._line(round_of(self._job, len(self.spending.rounds), line.round)).clients
            if line.round > upto:
                wrong = f"line {number} is of round {line.round}, 0 to {upto} expected"
            elif line.clients not in ("all", expected):  # an incomplete line was replaced by one with all clients
                wrong = f"line {number}: in round {line.round} clients {str(line.clients)[:60]} took part, and by the "
                wrong += f"job's seed {str(expected)[:60]} do"
            if wrong:
                break
            upto = max(upto, line.round + 1)
        if not wrong and upto < done:
            wrong = f"has no line of round {upto}, and the checkpoint says that {done} are done"
        if wrong:
            raise DataError(f"{self._path}: {wrong}; {REMEDY}")

    def _sealed(self, line: ReleasedRound) -> bytes:
        """The bytes of another line."""
        text, self._crc = sealed(line.model_dump(), self._crc)
        self._lines += 1
        return text

    def _line(self, now: Round) -> ReleasedRound:
        """Everybody counts where participation is secret."""
        everybody = now.present.all() or self.spending.release.by_chance
        return ReleasedRound(round=now.index, clients="all" if everybody else np.flatnonzero(now.present).tolist())

    def note(self, now: Round) -> None:
        """Write the line of round `now`, which is about to be run."""
        line = self._line(now)
        self._noted[line.round] += 1
        if self.secure or self._noted[line.round] > self._written[line.round]:
            append(self._path, self._sealed(line), self.secure)
            self._written[line.round] += 1
        self._allowed = range(now.index + 1, self._allowed.stop)
        self.spending = line.added(self.spending)

    def sync(self) -> Table:
        """Flush the file to the disk; its length and last CRC, which other files record."""
        sync(self._path)
        return {"lines": self._lines, "crc": self._crc}

    def allows(self, now: Round) -> bool:
        """Whether round `now` keeps every client within the budget.

        All rounds to come are looked at together, and again after a void one.
        """
        budget = budget_of(self._job)
        if budget is None or now.index in self._allowed:
            return True
        self._allowed = rounds_within(self._job, self.spending, now.index)
        if not self._allowed:
            before, once, whole = (
                spending_of(self._job, self.spending, now.index, stop).worst()
                for stop in (now.index, now.index + 1, self._job.rounds)
            )
            self.refusal = (
                f"{budget.key} = {budget.epsilon:g}: {before:.4g} is spent after {now.index} rounds by the client that "
                f"spent most; with another round it would be {once:.4g}, and with all {self._job.rounds} "
                f"{np.ceil(1000 * whole) / 1000:g}, at delta = {self.spending.privacy.delta:g}"  # may be a next budget
            )
        return bool(self._allowed)
