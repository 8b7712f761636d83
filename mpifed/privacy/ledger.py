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

import math
from collections import Counter
from pathlib import Path
from typing import Protocol

import numpy as np

from mpifed.algorithms.algorithm import Algorithm
from mpifed.core.errors import DataError
from mpifed.core.round import Round
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.write import append, replaced, sync
from mpifed.job.job import Job
from mpifed.job.participation import round_of
from mpifed.privacy import protection
from mpifed.privacy.calibration import budget_of, rounds_within, spending_of
from mpifed.privacy.ledger_file import (
    LEDGER,
    REMEDY,
    SCHEMA,
    LedgerHead,
    ReleasedRound,
    add,
    columns_of,
    header_of,
    others_of,
    read_ledger,
    sealed,
)
from mpifed.privacy.spending import Spending


class SavedProgress(Protocol):
    """What a checkpoint says of a private run: rounds done, void attempts at the next one, and the ledger's head."""

    @property
    def round(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def ledger(self) -> ReadOnlyTable | None: ...


class Ledger:
    """Counts the releases of a run, and their epsilons; its algorithm must have its noise multiplier."""

    def __init__(
        self, run_dir: Path, job: Job, settings: Table, algorithm: Algorithm, saved: SavedProgress | None, anew: bool
    ) -> None:
        """Begin the ledger of `run_dir` with the job's `settings` if `anew`, else read it.

        `saved` is the progress of a run that is resumed from a checkpoint. Raises DataError when the ledger is damaged,
        or does not agree with the checkpoint or the job.
        """
        self._dir, self._path, self._job = run_dir, run_dir / LEDGER, job
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
        contents = read_ledger(run_dir)
        lines, self.head = contents.lines, contents.head
        if contents.header.release != header.release:
            raise DataError(f"{self._path}: line 1 says that rounds release other than this job's do; {REMEDY}")
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
            self.spending = add(self.spending, line)

    def _check(self, lines: list[ReleasedRound], done: int) -> None:
        """DataError where a line is of a round that this job cannot have run, or a line is missing."""
        upto = 0  # every round below has a line
        for number, line in enumerate(lines, 2):
            if line.round > upto:
                raise DataError(f"{self._path}: line {number} is of round {line.round}, 0 to {upto} expected; {REMEDY}")
            upto = max(upto, line.round + 1)
            expected = self._line(round_of(self._job, len(self.spending.rounds), line.round)).clients
            # an incomplete line was replaced by one with all clients
            if line.clients not in ("all", expected):
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
        text = self._path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if self.secure:
            lines.append(ReleasedRound(round=lines[-1].round + 1 if lines else done, clients="all"))
            whole += self._sealed(lines[-1])
        with replaced(self._path) as file:
            file.write(whole)

    def _sealed(self, line: ReleasedRound) -> bytes:
        text, crc = sealed(line.model_dump(), self.head.crc)
        self.head = LedgerHead(self.head.lines + 1, crc)
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
        self.spending = add(self.spending, line)

    def sync(self) -> Table:
        """Flush the file to the disk; its head, which other files record."""
        sync(self._path)
        return self.head._asdict()

    def allows(self, now: Round) -> bool:
        """Whether round `now` keeps every client within the budget.

        All rounds to come are looked at together, and again after a void one.
        """
        job, budget = self._job, budget_of(self._job)
        if budget is None or now.index in self._allowed:
            return True
        self._allowed = rounds_within(job, self.spending, now.index)
        if self._allowed:
            return True
        once = spending_of(job, self.spending, now.index, now.index + 1)
        whole = budget.cost(spending_of(job, self.spending, now.index, job.rounds))
        self.refusal = (
            f"{budget.key} = {budget.epsilon:g}: {budget.cost(self.spending):.4g} is spent after "
            f"{now.index} rounds by the client that spent most; with another round it would be "
            f"{budget.cost(once):.4g}, at delta = {once.privacy.delta:g}"
        )
        if job.rounds > now.index + 1 and math.isfinite(whole):
            self.refusal += f", and with all {job.rounds} {math.ceil(whole * 1000) / 1000:g}"
        if budget.by_paper:
            self.refusal += f" by the paper's formula; [stop] epsilon, which is rigorous, would be {once.worst():.4g}"
        return False

    def columns(self) -> Table:
        """The epsilons so far, by column; None where infinite."""
        return columns_of(self.spending)

    def totals(self) -> Table:
        """The same with what is known to who knows a part of the noise."""
        return self.columns() | others_of(self.spending, self.shares)


def _shown(clients: object) -> str:
    return (
        f"[{', '.join(map(str, clients[:8]))}{', ...' if len(clients) > 8 else ''}]"
        if isinstance(clients, list)
        else "all"
    )
