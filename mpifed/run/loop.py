"""A run: its rounds, training time, evaluation, checkpoints and end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mpifed.comm.mpi import Comm, agreed
from mpifed.comm.rounds import Request, play
from mpifed.core.errors import NotCertified, UsageError
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
from mpifed.run.setup import prepare
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
        self, job: Job, comm: Comm, out: Path, reporter: Reporter, request: Request,
        header: Header | None, accept_changed: bool, observation: Observation | None,
    ) -> None:  # fmt: skip
        """`header`: of the ledger, if the run is resumed. `observation`: on rank 0, which alone imports what writes."""
        self.comm, self.out, self.reporter, self.header = comm, out, reporter, header
        self.accept_changed, self.observation = accept_changed, observation
        self.ready = ready = prepare(job, comm, header)
        self.job, self.ranks, self.algorithm = ready.job, ready.ranks, ready.algorithm
        self.ranks.request = request
        self.server, self.clients = ready.server, ready.clients
        self.settings, self.serves = self.job.table(), self.ranks.serves
        self.identity: Identity | None = None  # on rank 0, as the results and the ledger of a private run are
        self.results: Results | None = None
        self.ledger: Ledger | None = None
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

    def play(self, resume: bool, max_hours: float | None) -> Result | None:
        """Run the job from its start, or from its checkpoint, to its end."""
        ranks, evaluation = self.ranks, self.evaluation
        if resume:
            self._load()
        else:
            setup, everybody = self.algorithm.setup, self.ready.everybody
            self.server, self.clients = play(setup, self.server, self.clients, everybody, ranks)
            self.progress = self.progress.after(0.0, ranks)
        with agreed(self.comm):
            if self.serves:
                self._open_results(resume)
        evaluation.row = self.comm.bcast(evaluation.row)  # what has been measured already
        began_cpu = time.process_time()
        with environment.unscanned_objects():
            self._rounds(max_hours)
        cpu_s = time.process_time() - began_cpu
        end, returned = self._measure_the_end(ranks.order != INTERRUPTED)
        self._checkpoint()
        told = (evaluation.lacking(), self.ledger.refusal if self.ledger else None) if self.serves else None
        lacking, refusal = self.comm.bcast(told)
        code = ranks.order if ranks.order > 0 else NotCertified.exit_code * bool(lacking)
        # where a run goes on, values may be small because it has converged; and what is private tells nothing of them
        steps = {} if resume or self.job.privacy else ranks.steps
        gathered = self.comm.gather((cpu_s, environment.rss_bytes(peak=True), steps))
        result = None
        if gathered is not None and self.results is not None:
            seconds, peaks, steps_by_rank = zip(*gathered, strict=True)
            if returned is not None:
                self.results.about["returned_round"] = returned
                self.results.write_clients(evaluation.clients)
            remarks = [*outcome.rounded_away(steps_by_rank, evaluation.uncertain)]
            if self.job.unsteady and self.progress.round and not (self.round_s or resume):
                remarks.append("[simulated_network]: no round had enough answers, and the model is the first one")
            last = evaluation.row if evaluation.row.get("round") == self.progress.round else {}
            self.results.close(end, {**last, **evaluation.late}, evaluation.late, remarks)
            self.results.write(self.progress, code, self.round_s, sum(seconds), peaks)
            columns = evaluation.last_columns()
            result = Result(self.out, self.progress.round, columns, self.algorithm.model(end))
        return outcome.ended(code, self.job, self.progress.round, self.out, result, lacking, refusal)

    def _rounds(self, max_hours: float | None) -> None:
        ranks, record, exchanges = self.ranks, self.job.record, self.algorithm.exchanges
        if self.progress.round == 0 and not self.evaluation.row:
            self.evaluation.begin(self.trained)
            if record.evaluate_every:
                self._measure()
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
            elapsed_s = time.perf_counter() - start
            again = next_attempt(self.job, now, exchanges, attempt)
            if again is not None:
                self.progress = self.progress.after(elapsed_s, ranks, attempt=again)
                continue
            passes = now.at(len(exchanges) - 1).void
            if not passes:  # else it says nothing of others
                self.round_s.append(elapsed_s)
            self.evaluation.advance()
            self.progress = self.progress.after(elapsed_s, ranks, rounds=1)
            self.reporter.advance(self.progress.round)
            if len(self.round_s) == 1 and not passes:
                with agreed(self.comm):
                    self._check_states()
                self._check_settings()
            if record.evaluate_every and self.progress.round % record.evaluate_every == 0:
                self._measure()
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
        seconds, hours = self.job.stop.seconds, (time.monotonic() - self.started) / 3600
        late = max_hours is not None and hours > max_hours
        if late or self.ranks.request.asked or self.ranks.requested:
            return INTERRUPTED
        timed_out = seconds is not None and self.progress.elapsed_s >= seconds
        if timed_out or self.evaluation.reached or self.evaluation.is_stalled():
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
        """Measure a row, of which the server may take note.

        It has certificates where the run `ends`, at its first and last round, and as the job says.
        """
        self.progress = done = self.progress._replace(exchanges=self.ranks.accounts(self.spent))
        every = self.job.record.certify_every
        certify = ends or done.round in (0, self.job.rounds) or (every > 0 and done.round % every == 0)
        columns = self.evaluation.row_columns(self.trained, certify)
        resident = [] if self.job.released_only else self.comm.gather(environment.rss_bytes()) or []
        counted = self.ready.data.split == "rows" and not self.ready.key
        gradients = round(sum(cost.get("gradients", 0) for cost in done.exchanges.values()))
        self.evaluation.row = {"round": done.round}
        with agreed(self.comm):
            if self.results is not None:
                simulated = self.results.simulated(done)
                row = {
                    "round": done.round,
                    "elapsed_s": done.elapsed_s,
                    **columns,
                    **{key: value for key, value in simulated.items() if key == "simulated_s"},
                    "gradients": gradients if counted else None,
                    "rss_bytes": max(resident, default=None),
                    "up_bytes": done.up_bytes,
                    "down_bytes": done.down_bytes,
                    **(self.ledger.spending.epsilons() if self.ledger else {}),
                }
                self.results.row(row, self.evaluation.clients)
                self.evaluation.note(row)
        if not ends:
            self.server = self._noted()

    def _noted(self) -> ServerRecord:
        """The server's state, which may take note of what was measured of it; on rank 0."""
        row = self.evaluation.row
        if not self.serves or row.get("round") != self.progress.round:
            return self.server
        if self.job.privacy is not None:  # no model may follow from what was measured without noise
            row = {name: value for name, value in row.items() if column_of(name).data not in ("train", "own test")}
        return self.algorithm.measured(self.server, row)

    def _measure_the_end(self, complete: bool) -> tuple[ServerRecord, int | None]:
        """(the state whose model is returned, its round if it is not the last, whose row is then measured). Collective.

        Checkpoints have the state without what is measured at this end alone. `complete`: measure the last row too, and
        what it lacks.
        """
        measured, end_round = self.evaluation.row.get("round") == self.progress.round, self.progress.round
        if complete and self.job.record.evaluate_every and not measured:
            self._measure(ends=True)
        elif complete and not self.round_s and self.ready.tests.own is not None:
            self.evaluation.row_columns(self.trained, certify=False)  # a kill may have come before clients.csv
            if self.results is not None:
                self.results.write_clients(self.evaluation.clients)
        end, round = self._noted(), None
        if self.serves and not self.evaluation.reached:
            end, round = self.algorithm.returned(end)
        round = self.comm.bcast(None if round == end_round else round)
        if complete:
            self.evaluation.complete(self.trained._replace(server=end), measured, round is not None)
        return end, round

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
        self.progress, self.server, last_answers = self.checkpoints.load(self.server, self.clients, self._check_same)
        if self.checkpoints.damaged and self.serves:
            self.reporter.warn(f"{self.out}: goes on after round {self.progress.round}; {self.checkpoints.damaged}")
        ranks.restore(last_answers)
        self.spent, self.evaluation.first = self.progress.exchanges, self.progress.first
        if self.serves:
            ranks.up_bytes += self.progress.up_bytes
            ranks.down_bytes += self.progress.down_bytes

    def _check_same(self, done: Progress, before: Table) -> None:
        """UsageError or DataError where a checkpoint is that of another run; on rank 0."""
        from mpifed.run.folder import same_job

        assert self.identity is not None
        same_job(self.out, before.get("job", {}), self.settings)
        if self.job.rounds < done.round:  # job.toml would say fewer than the model has seen
            raise UsageError(
                f"{self.out}: --resume with rounds = {self.job.rounds}, and {done.round} are done; give as many or "
                "more, or start anew into another --out"
            )
        self.identity = self.identity.resumed(self.out, before, done.round, self.accept_changed)

    def _open_results(self, resumed: bool) -> None:
        """Open the result files, with the ledger of a private run; on rank 0."""
        from mpifed.files.clients import CLIENTS
        from mpifed.run.output import Results

        if self.job.privacy is not None:
            from mpifed.privacy.ledger import Ledger

            done, anew = self.progress, self.header is None and not resumed
            saved = (done.round, done.attempt, done.ledger) if resumed else None
            self.ledger = Ledger(self.out, self.job, self.settings, self.algorithm, anew, saved)
        if self.ready.tests.own is None:
            (self.out / CLIENTS).unlink(missing_ok=True)  # that of an earlier round, and of a job that recorded it
        assert self.observation is not None and self.identity is not None
        results = Results(self.ready, self.out, self.reporter, self.observation, self.ledger, self.identity)
        for row in results.resume(self.progress) if resumed else ():
            self.evaluation.note(row)
        results.open(self.comm, self.progress, resumed)
        self.results = results
