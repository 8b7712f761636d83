"""A run: its rounds, training time, evaluation, checkpoints and end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mpifed.comm.mpi import Comm, agreed
from mpifed.comm.rounds import Request, play
from mpifed.core.errors import NotCertified, TooFewClients, UsageError
from mpifed.core.exchange import ServerRecord
from mpifed.core.round import Round
from mpifed.core.tables import Table
from mpifed.files.columns import column_of
from mpifed.job.job import Job, Watched
from mpifed.job.participation import next_attempt, next_round
from mpifed.run import environment, outcome
from mpifed.run.checkpoint import Checkpoints, Progress
from mpifed.run.evaluation import RunEvaluation, Trained
from mpifed.run.outcome import BUDGET_SPENT, INTERRUPTED, LIMIT_REACHED, TOO_FEW, Result
from mpifed.run.progress import Reporter
from mpifed.run.setup import Cache, prepare
from mpifed.run.state_check import check_state

if TYPE_CHECKING:
    from mpifed.privacy.ledger import Ledger
    from mpifed.privacy.ledger_file import Header
    from mpifed.run.identity import Identity
    from mpifed.run.observation import Observation
    from mpifed.run.output import Results


class RunLoop:
    """A run on this rank, from preparation to results, with all its mutable state."""

    def __init__(
        self, job: Job, comm: Comm, out: Path, reporter: Reporter, request: Request, cache: Cache | None,
        header: Header | None, accept_changed: bool, observation: Observation | None,
    ) -> None:  # fmt: skip
        """`header`: of the ledger, if the run is resumed. `observation`: on rank 0, which alone imports what writes."""
        self.comm, self.out, self.reporter, self.header = comm, out, reporter, header
        self.accept_changed, self.observation = accept_changed, observation
        self.ready = ready = prepare(job, comm, cache, header)
        self.job, self.ranks, self.algorithm = ready.job, ready.ranks, ready.algorithm
        self.ranks.request = request
        self.server, self.clients = ready.server, ready.clients
        self.end = self.server  # whose model is returned
        self.settings, self.serves = self.job.table(), self.ranks.serves
        self.identity: Identity | None = None  # on rank 0, as the results are
        self.results: Results | None = None
        with agreed(comm):
            if self.serves:
                from mpifed.run.identity import Identity

                self.identity = Identity.of(self.job, ready.data, self.ranks.device, self.algorithm.problem.start)
        self.checkpoints = Checkpoints(out, comm, self.ranks.blocks)
        self.progress = Progress(0)
        self.evaluation = RunEvaluation(self.job, comm, ready)
        self.round_s: list[float] = []
        self.spent: Mapping[str, Mapping[str, float]] = {}  # costs of the exchanges before the run was resumed
        self.started = time.monotonic()

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of a private run; on rank 0."""
        return self.results.ledger if self.results else None

    def play(self, resume: bool, max_hours: float | None) -> Result | None:
        """Run the job from its start, or from its checkpoint, to its end."""
        ranks = self.ranks
        if resume:
            self._load()
        else:
            self.server, self.clients = play(
                self.algorithm.setup, self.server, self.clients, self.ready.everybody, ranks
            )
            self.progress = Progress(0).after(0.0, ranks)
        with agreed(self.comm):
            if self.serves:
                self.results = self._results(resume)
                if resume:
                    for row in self.results.resume(self.progress):
                        self.evaluation.note(row)
                self.results.open(self.comm, self.progress, resume)
        self.evaluation.row = self.comm.bcast(self.evaluation.row)  # what has been measured already
        began_cpu = time.process_time()
        with environment.unscanned_objects():
            self._rounds(max_hours)
        cpu_s = time.process_time() - began_cpu
        returned = self._measure_the_end(ranks.order != INTERRUPTED)
        self._checkpoint()
        code = NotCertified.exit_code if self.serves and self.evaluation.lacking() else 0
        code = self.comm.bcast(ranks.order if ranks.order in (INTERRUPTED, BUDGET_SPENT, TOO_FEW) else code)
        self._close_results(cpu_s, code, resume, returned)
        return self._result(code)

    def _result(self, code: int) -> Result | None:
        """The result, on rank 0; or the error that reports this end, on every rank."""
        result, told = None, None
        if self.serves:
            model = self.algorithm.model(self.end)
            result = Result(self.out, self.progress.round, self.evaluation.last_columns(), model)
            told = self.evaluation.lacking(), self.ledger.refusal if self.ledger else None
        return outcome.ended(code, self.job, self.progress.round, self.out, result, *self.comm.bcast(told))

    def _rounds(self, max_hours: float | None) -> None:
        ranks, record, exchanges = self.ranks, self.job.record, self.algorithm.exchanges
        if self.progress.round == 0 and not self.evaluation.row:
            self.evaluation.begin(self.trained)
            if record.evaluate_every:
                self._measure()
                self.server = self._noted()
        self.evaluation.check_whether_reached(self.trained)
        while self.progress.round < self.job.rounds:
            attempt = self.progress.attempt
            if attempt == self.job.participation.attempts:
                ranks.order = TOO_FEW
                return
            now = next_round(self.job, ranks.clients, exchanges, self.progress.round, attempt, self.ready.key)
            if self.serves:
                ranks.order = self._order(max_hours, now)
            start = time.perf_counter()
            self.server, self.clients = play(exchanges, self.server, self.clients, now, ranks)
            if ranks.order:
                return
            again = next_attempt(self.job, now, exchanges, attempt)
            if again is not None:
                self.progress = self.progress.after(time.perf_counter() - start, ranks, attempt=again)
                continue
            elapsed_s = time.perf_counter() - start
            if not now.at(len(exchanges) - 1).void:  # else it passes, and says nothing of others
                self.round_s.append(elapsed_s)
            self.evaluation.advance()
            self.progress = self.progress.after(elapsed_s, ranks, rounds=1)
            self.reporter.advance(self.progress.round)
            if len(self.round_s) == 1:
                with agreed(self.comm):
                    self._check_states()
                self._check_settings()
            if record.evaluate_every and self.progress.round % record.evaluate_every == 0:
                self._measure()
                self.server = self._noted()
                self.evaluation.check_whether_reached(self.trained)
            if record.checkpoint_every and self.progress.round % record.checkpoint_every == 0:
                self._checkpoint()

    def _check_states(self) -> None:
        """Check that checkpoints can hold the states after the first round: the server's, and those of a block."""
        clients, name, what = self.clients, self.job.algorithm["name"], "a client's state after a round"
        for number in [*clients.changed][:1]:
            count = self.ranks.blocks.size(number)
            begun = check_state(name, what, clients.begin(number), clients=count)
            check_state(name, what, clients.peek(number), begun, count)
        check_state(name, "the server's state after a round", self.server, self.ready.specs)

    def _check_settings(self) -> None:
        """Refuse settings of optimizers that an own method was given, and that no rank has read by now. Collective."""
        parts = vars(self.algorithm).items()
        unread = {f"[{key}] {name}" for key, part in parts if isinstance(part, Watched) for name in part.unread}
        if unread := set.intersection(*self.comm.allgather(unread)):
            method = self.job.algorithm["name"]
            raise UsageError(
                f'{", ".join(sorted(unread))}: "{method}" has not read that; leave it out, or make use of it'
            )

    def _order(self, max_hours: float | None, now: Round) -> int:
        """The order that the server broadcasts before round `now`; 0 to run it, which the ledger then records."""
        ranks, seconds = self.ranks, self.job.stop.seconds
        if ranks.request.asked or ranks.requested:
            return INTERRUPTED
        if max_hours is not None and time.monotonic() - self.started > max_hours * 3600:
            return INTERRUPTED
        if self.evaluation.reached or self.evaluation.is_stalled():
            return LIMIT_REACHED
        if seconds is not None and self.progress.elapsed_s >= seconds:
            return LIMIT_REACHED
        if self.ledger is not None:
            if not self.ledger.allows(now):
                return BUDGET_SPENT
            self.ledger.note(now)
        return 0

    @property
    def trained(self) -> Trained:
        return Trained(self.progress.round, self.server, self.clients)

    def _measure(self, ends: bool = False) -> None:
        """Measure a row; with certificates where the run `ends`, at its first and last round, and as the job says."""
        self.progress = done = self.progress._replace(exchanges=self.ranks.accounts(self.spent))
        every = self.job.record.certify_every
        certify = ends or done.round in (0, self.job.rounds) or (every > 0 and done.round % every == 0)
        columns = self.evaluation.row_columns(self.trained, certify)
        simulated_s = self.results.simulated_s(done) if self.results else None
        resident = [] if self.job.released_only else self.comm.gather(environment.rss_bytes()) or []
        self.evaluation.row = row = {
            "round": done.round,
            "elapsed_s": done.elapsed_s,
            **columns,
            **({} if simulated_s is None else {"simulated_s": simulated_s}),
            "gradients": round(sum(cost.get("gradients", 0) for cost in done.exchanges.values()))
            if self.ready.data.split == "rows" and not self.ready.key
            else None,
            "rss_bytes": max(resident, default=None),
            "up_bytes": done.up_bytes,
            "down_bytes": done.down_bytes,
            **(self.ledger.spending.epsilons() if self.ledger else {}),
        }
        if self.results is not None:
            self.results.row(row, self.evaluation.clients)
        with agreed(self.comm):
            if self.serves:
                self.evaluation.note(row)

    def _noted(self) -> ServerRecord:
        """The server's state, which may take note of what was measured of it; on rank 0."""
        row = self.evaluation.row
        new = self.serves and row.get("round") == self.progress.round
        if self.job.privacy is not None:  # no model may follow from what was measured without noise
            row = {name: value for name, value in row.items() if column_of(name).data not in ("train", "own test")}
        return self.algorithm.measured(self.server, row) if new else self.server

    def _measure_the_end(self, complete: bool) -> int | None:
        """Settle which model is returned: its round if it is not the last, whose row is then measured. Collective.

        `complete`: measure the last row too, and what it lacks.
        """
        measured = self.evaluation.row.get("round") == self.progress.round
        if complete and self.job.record.evaluate_every and not measured:
            self._measure(ends=True)
        elif complete and not self.round_s and self.ready.tests.own is not None:
            self.evaluation.row_columns(self.trained, certify=False)  # a kill may have come before clients.csv
            if self.results is not None:
                self.results.write_clients(self.evaluation.clients)
        round: int | None = None
        self.end = self._noted()  # checkpoints have the state without what is measured at this end alone
        if self.serves and not self.evaluation.reached:
            self.end, round = self.algorithm.returned(self.end)
        round = self.comm.bcast(None if round == self.progress.round else round)
        if complete:
            self.evaluation.complete(self.trained._replace(server=self.end), measured, round is not None)
        return round

    def _checkpoint(self) -> None:
        costs = self.ranks.accounts(self.spent)
        self.progress = self.progress._replace(exchanges=costs, first=self.evaluation.first)
        if self.ledger is not None:
            self.progress = self.progress._replace(ledger=self.ledger.sync())
        if self.results is not None and self.results.history is not None:
            self.progress = self.progress._replace(rows=self.results.history.sync())
        run: Table = {"job": self.settings, "identity": self.identity._asdict() if self.identity else None}
        self.checkpoints.save(self.progress, run, self.server, self.clients, self.ranks.last_answers())

    def _load(self) -> None:
        ranks = self.ranks
        self.progress, before, self.server, last_answers = self.checkpoints.load(self.server, self.clients)
        if self.checkpoints.damaged and self.serves:
            self.reporter.warn(f"{self.out}: goes on after round {self.progress.round}; {self.checkpoints.damaged}")
        with agreed(self.comm):
            if self.identity is not None:  # on rank 0
                from mpifed.run.folder import same_job

                same_job(self.out, before.get("job", {}), self.settings)
                if self.job.rounds < self.progress.round:  # job.toml would say fewer than the model has seen
                    raise UsageError(
                        f"{self.out}: --resume with rounds = {self.job.rounds}, and {self.progress.round} are done; "
                        "give as many or more, or start anew into another --out"
                    )
                self.identity = self.identity.resumed(self.out, before, self.progress.round, self.accept_changed)
        ranks.restore(last_answers)
        self.spent, self.evaluation.first = self.progress.exchanges, self.progress.first
        if self.serves:
            ranks.up_bytes += self.progress.up_bytes
            ranks.down_bytes += self.progress.down_bytes

    def _results(self, resumed: bool) -> Results:
        """The result files, not yet open, with the ledger of a private run; on rank 0."""
        from mpifed.files.clients import CLIENTS
        from mpifed.run.output import Results

        ledger = None
        if self.job.privacy is not None:
            from mpifed.privacy.ledger import Ledger

            done, anew = self.progress, self.header is None and not resumed
            saved = (done.round, done.attempt, done.ledger) if resumed else None
            ledger = Ledger(self.out, self.job, self.settings, self.algorithm, anew, saved)
        if self.ready.tests.own is None:
            (self.out / CLIENTS).unlink(missing_ok=True)  # that of an earlier round, and of a job that recorded it
        assert self.observation is not None and self.identity is not None
        return Results(self.ready, self.out, self.reporter, self.observation, ledger, self.identity)

    def _close_results(self, cpu_s: float, code: int, resumed: bool, returned: int | None) -> None:
        # where a run goes on, values may be small because it has converged; and what is private tells nothing of them
        steps = {} if resumed or self.job.privacy else self.ranks.steps
        gathered = self.comm.gather((cpu_s, environment.rss_bytes(peak=True), steps))
        if gathered is not None and self.results is not None:
            evaluation = self.evaluation
            last = evaluation.row if evaluation.row.get("round") == self.progress.round else {}
            seconds, peaks, steps_by_rank = zip(*gathered, strict=True)
            rounded = outcome.rounded_away(steps_by_rank, evaluation.uncertain)
            if returned is not None:
                self.results.about["returned_round"] = returned
                self.results.write_clients(evaluation.clients)
            self.results.close(self.end, {**last, **evaluation.late}, evaluation.late, rounded)
            exit_code = TooFewClients.exit_code if code == TOO_FEW else code
            self.results.write(self.progress, exit_code, self.round_s, sum(seconds), peaks)
