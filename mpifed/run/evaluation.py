"""Evaluation, which is not in the training time: sums over the ranks of training rows, by exchanges, and test rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isnan
from types import MappingProxyType
from typing import Any, NamedTuple

from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.certificate import known
from mpifed.algorithms.measure import Columns, Measure
from mpifed.comm.mpi import Comm
from mpifed.comm.rounds import Ranks, play
from mpifed.comm.states import ClientStates
from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.exchange import ServerRecord, States
from mpifed.core.record import Record
from mpifed.core.round import Round
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.data.block import Block
from mpifed.data.roster import Roster
from mpifed.files.clients import ClientScores
from mpifed.files.columns import column_of
from mpifed.job import goals
from mpifed.job.job import Job
from mpifed.run.scoring import Personal
from mpifed.run.setup import Ready, measures_of


def measure(
    measures: Sequence[Measure],
    algorithm: Algorithm,
    server: Record,
    blocks: Sequence[Block],
    states: States,
    now: Round,
    ranks: Ranks,
    certify: bool = True,
    room: float = inf,
    first: ReadOnlyTable | None = MappingProxyType({}),
) -> tuple[Columns, Table]:
    """(columns of a row of the history, numbers of the first iterate), on rank 0; empty elsewhere. Collective.

    Parameters
    ----------
    states : of the algorithm's clients, a record for each block
    now : a round in which all clients participate
    certify : compute the certificates too; otherwise their columns are None
    room : bytes of memory for the clients' states during the evaluation
    first : the numbers of the first iterate; empty at the first iterate itself, None where they are not known, so that
        certificates that need them are left out
    """
    columns: Columns = {}
    numbers = dict(first or {})
    roster = Roster.of(blocks)
    for measurement in measures:
        if measurement.certificate and not (certify and (measurement.first is None or first is not None)):
            columns |= dict.fromkeys(measurement.certificate)
            continue
        state: ServerRecord = measurement.start(server) if ranks.serves else None

        def begin(i: int, start: Callable[..., Record] = measurement.start_clients) -> Record:
            return start(roster[i], states.peek(i))

        clients: States = ClientStates(roster.first, begin, room)
        for _ in range(measurement.turns):
            state, clients = play(measurement.exchanges, state, clients, now, ranks, measured=True)
        if ranks.serves:
            if not first and measurement.first is not None:
                numbers |= measurement.first(server, state)
            columns |= measurement.report(server, state, numbers)
    return columns, numbers


def personal_models(algorithm: Algorithm, states: States) -> Personal | None:
    """By the number of a block, the models by which its clients are judged; None: by the server's."""
    personal: Any = algorithm.personal  # of its own records
    return personal and (lambda i, model: personal(states.peek(i), model))


class Trained(NamedTuple):
    """The states after a round."""

    round: int  # rounds done
    server: ServerRecord
    clients: States


class RunEvaluation:
    """What a run has measured last, and whether the job's goals are reached; all but `lacking` is collective.

    `row` is the last row of the history, `late` has columns of the last model that are not in it, `first` numbers of
    the first iterate that certificates need, `clients` the clients' scores in `row`, on rank 0; `reached` is whether
    the model of this round reaches what `[stop]` requires, `uncertain` whether its certificate is left empty, as
    nothing true can be said.
    """

    def __init__(self, job: Job, comm: Comm, ready: Ready) -> None:
        self._job, self._comm, self._ready = job, comm, ready
        self._measures = measures_of(job, ready.algorithm)
        self._certificates = [measure for measure in self._measures if measure.certificate]
        certified = {column for measure in self._certificates for column in measure.certificate}
        self._always = not certified.isdisjoint(job.stop.columns)  # by which a run ends
        self._at_the_end = goals.has_goals(job) and not job.record.evaluate_every  # goals are measured there alone
        self.clients: ClientScores | None = None
        self.row: Table = {}
        self.late: Columns = {}
        self.first: ReadOnlyTable | None = None
        self.reached = self.uncertain = False
        self._best: dict[str, tuple[float, int]] = {}  # of `[stop] patience`: the best value and its round; on rank 0

    def note(self, row: Table) -> None:
        """Take note of a measured row, by which `[stop]` decides; on rank 0."""
        self.row, stop = row, self._job.stop
        if unknown := [name for name in stop.columns if name not in row]:
            raise UsageError(f"[stop] {unknown[0]}: this run measures no such column; it has {', '.join(row)}")
        for name in stop.patience:
            value, sign = known(row, name), -1 if column_of(name).better == "more" else 1
            if value is not None and sign * value < self._best.get(name, (inf, 0))[0]:
                self._best[name] = sign * value, row["round"]

    def is_stalled(self) -> bool:
        """Whether a column of `[stop] patience` has had no better value for as many rounds; on rank 0."""
        done, patience = self.row.get("round", 0), self._job.stop.patience
        return any(done - since >= patience[name] for name, (_, since) in self._best.items())

    def advance(self) -> None:
        """A round is done: what was measured is not of this model."""
        self.late, self.reached = {}, False

    def columns(self, trained: Trained, measures: Sequence[Measure], certify: bool = True) -> Columns:
        """The columns of the history that measures give."""
        ready, first = self._ready, self.first if trained.round else self.first or {}
        try:
            columns, numbers = measure(
                measures, ready.algorithm, trained.server, ready.ranks.blocks, trained.clients, ready.everybody,
                ready.ranks, certify, self._job.data.state_gib * 2**30, first,
            )  # fmt: skip
        except NumericalError:
            if self._job.privacy is None:
                raise
            raise NumericalError(  # without the client and the value, which may be those of a record
                "[record]: what is measured over training data, without noise, is not finite or outside its bound, as "
                "one record can make it; set released_only = true, which measures none of it"
            ) from None
        if not trained.round:
            self.first = numbers
        self.uncertain = any(isnan(columns.get(name) or 0.0) for name in ("duality_gap", "lower_bound"))
        return {name: known(columns, name) for name in columns} if self.uncertain else columns

    def row_columns(self, trained: Trained, certify: bool) -> Columns:
        """The columns of a row of the history: all of the job's, and those of test rows."""
        columns, ready = self.columns(trained, self._measures, certify or self._always), self._ready
        model = ready.algorithm.model(trained.server) if ready.ranks.serves else ()
        tested, self.clients = ready.tests.measured(model, personal_models(ready.algorithm, trained.clients))
        return columns | tested

    def begin(self, trained: Trained) -> None:
        """The numbers of the first iterate, where goals are measured at the end alone."""
        if self._at_the_end:
            self.columns(trained, self._certificates)

    def check_whether_reached(self, trained: Trained) -> None:
        """Set `reached`, where this round is measured."""
        if self._job.stop.reached and self.row.get("round") == trained.round:
            self.reached = self._comm.bcast(self._ready.ranks.serves and not self.lacking())

    def complete(self, trained: Trained, measured: bool, earlier: bool) -> None:
        """What the last row lacks: certificates, and limits where no row is measured.

        Parameters
        ----------
        measured : whether the row was there before the end
        earlier : whether the model is that of an earlier round, and so the row of another
        """
        if earlier:
            self.late = self.row_columns(trained, certify=True)
        elif self._at_the_end:
            self.late = self.columns(trained, self._measures)
        elif measured and self._certificates and self._comm.bcast(known(self.row, "kkt_residual") is None):
            self.late = self.columns(trained, self._certificates)

    def lacking(self) -> list[str]:
        """On rank 0: the goals that the last measured model does not reach."""
        return list(goals.unreached(self._job, self.last_columns()))

    def last_columns(self) -> Table:
        """All columns of the last measured model."""
        return self.row | self.late
