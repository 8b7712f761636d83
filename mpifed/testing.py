"""Play a job round by round and look inside; test classes of one's own, as `mpifed.run` would use them.

Arrays are copies in host memory, by the dotted names of fields. Rounds count from 1, as in a history; the start is
round 0. What is played has the bits of `mpifed run`, where that computes with one thread. Records of whatever method is
played are `Any` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms import ALGORITHMS as ALGORITHMS
from mpifed.algorithms.local_method import LocalSteps, slices
from mpifed.comm.mpi import Communicator, Intracomm
from mpifed.comm.mpi import Solo as Solo
from mpifed.comm.rounds import play
from mpifed.core.device import host_record
from mpifed.core.errors import TooFewClients, UsageError
from mpifed.core.exchange import Exchange, ServerRecord, States, fields_of
from mpifed.core.lazy import Lazy
from mpifed.core.record import Array, Record, leaves, on_host, take
from mpifed.core.round import Round
from mpifed.core.tables import ReadOnlyTable
from mpifed.data.block import Block
from mpifed.data.store import open_federation
from mpifed.job.job import Job as Job
from mpifed.job.participation import is_secure, next_attempt, next_round, round_of
from mpifed.laws import ROUNDING, pure
from mpifed.run.evaluation import measure, personal_models
from mpifed.run.own_classes import check_by_laws, parts_of
from mpifed.run.setup import Ready, prepare, problem_of

Named: TypeAlias = dict[str, Array]  # arrays by the dotted names of fields, as "head.bias"
AnyJob: TypeAlias = "Job | ReadOnlyTable | str | Path"  # a checked job, its table, or its file


class Played(NamedTuple):
    """A job after a round."""

    round: int  # rounds so far
    model: Named  # on rank 0; elsewhere empty
    server: Named  # the server's state; on rank 0
    clients: list[Named]  # N, what each client keeps
    columns: dict[str, float | None]  # what a history has of this round, where it was measured; on rank 0


def rounds(job: AnyJob, *, ranks: Communicator | None = None, measured: int = 0) -> Iterator[Played]:
    """The start, and the job after each of its rounds. Collective over `ranks`; nothing is written.

    Parameters
    ----------
    job
        A table, a file, or a checked `Job`.
    ranks
        A communicator of mpi4py; absent: this process alone.
    measured
        Every so many rounds `columns` are measured, certificates included; 0: never.

    Raises
    ------
    UsageError, DataError, NumericalError, TooFewClients
        As the run itself would.
    """
    checked = _checked(job)
    at = prepare(checked, Solo() if ranks is None else Intracomm(ranks))
    yield from _rounds(checked, at, checked.rounds, measured)


def participants(job: AnyJob, round: int) -> NDArray[np.int64]:
    """[K] the clients who are drawn for a round, ascending."""
    checked = _reproducible(job)
    return np.flatnonzero(round_of(checked, open_federation(checked.data.path).clients, round - 1).present)


def minibatches(job: AnyJob, round: int, client: int) -> list[NDArray[np.int64]]:
    """The rows [b] of a client in each of its local steps of a round, by position in its shard.

    Clients of columns all take the same rows.

    Raises
    ------
    UsageError
        Where the method draws none.
    """
    checked = _reproducible(job)
    table, privacy, data = checked.algorithm, checked.privacy, open_federation(checked.data.path)
    if "batch_size" not in table:
        raise UsageError(f'[algorithm] name = "{table["name"]}": draws no minibatches')
    client = 0 if data.split == "columns" else client  # of whom the draw is
    size, now = int(data.counts[client]), round_of(checked, data.clients, round - 1)
    algorithm = checked.make_algorithm(problem_of(checked, data))
    batch, epochs = min(table["batch_size"], size), table.get("local_epochs")
    steps = epochs or table.get("local_steps") or 1
    if isinstance(algorithm, LocalSteps):
        steps = int(algorithm.in_round(now).repeats_of(now, np.array([client]))[0])
    drawn_for = np.array([client]), np.array([size])
    if privacy is not None and privacy.on_gradients:
        return [now.draw(f"minibatch {r}", *drawn_for, batch)[0] for r in range(steps)]
    places = slices(batch, steps, bool(epochs), size)
    rows = now.draw("minibatch", *drawn_for, places[-1].stop)[0]
    return [rows[place] for place in places]


def uploads(job: AnyJob, round: int) -> Named:
    """[n, ...] what each participating client of a round would send, clipped and with its noise, before any sum.

    By "exchange/field"; functions are tested as by `check_algorithm`. A value that a method weights is times its
    weight; with columns or cells, zeros stand where a client holds nothing.
    """
    checked, at = _prepared(job)
    sent = Named()
    for played in _rounds(checked, at, round, sent=sent):
        if played.round < round:
            sent.clear()
    return sent


def check_algorithm(job: AnyJob, rounds: int = 3) -> None:
    """Test the job's algorithm on its data, in a few rounds; AssertionError names the exchange and what it does.

    Its functions must not change what they are given, nor give other bits the second time; a client answers as it would
    alone; sums must be those of the answers, however they are formed; states keep names, shapes and types.
    """
    checked, at = _prepared(job)
    start, *others = ([one.server, *one.clients] for one in _rounds(checked, at, rounds, sent={}))
    forms = [
        [{name: (a.shape, str(a.dtype)) for name, a in state.items()} for state in one] for one in (start, *others)
    ]
    for came, expected in ((came, forms[0][k]) for states in forms for k, came in enumerate(states)):
        if came != expected:
            raise AssertionError(f"[algorithm] {checked.algorithm['name']}: a state is {came}, {expected} is expected")


def check_model(job: AnyJob) -> None:
    """Test the job's model, and its terms, at random models and rows; AssertionError says what does not hold.

    Gradients are those of differences of losses, a sample and a client count as they would alone, a
    second call gives the same bits, and `convex` holds where it is said.
    """
    _check_parts(job, regularizer=False)


def check_regularizer(job: AnyJob) -> None:
    """Test that the prox of the job's regularizer is a minimizer, against other points; AssertionError if not."""
    _check_parts(job, regularizer=True)


def _check_parts(job: AnyJob, regularizer: bool) -> None:
    checked, ready = _prepared(job)
    parts = [p for p in parts_of(checked, ready.algorithm.problem) if (p.table == "regularizer") == regularizer]
    assert parts, "[regularizer]: missing, and so there is nothing to check"
    for part in parts:
        try:
            check_by_laws(part, checked, ready.algorithm.problem)
        except AssertionError as error:
            raise AssertionError(f"{part.place}: {error}") from error


class _Listener:
    """An exchange whose functions are asked once more: they must be pure, and sums those of the answers.

    `sent`: what clients have sent, by "exchange/field".
    """

    def __init__(self, exchange: Exchange, sent: Named) -> None:
        self.of, self.sent, self.answers, self.total = exchange, sent, list[Named](), cast("Record", None)

    def exchange(self) -> Exchange:
        """The exchange with these functions."""
        parts = {name: getattr(self, name) for name in ("answer", "absorb", "hear") if getattr(self.of, name)}
        return replace(self.of, ask=self.ask, **parts)

    def ask(self, server: Record, now: Round) -> Record:
        self.answers.clear()
        asked: Record = pure(self.of.name, self.of.ask, server, now)
        return asked

    def answer(self, state: Record, question: Record, block: Block, now: Round) -> tuple[Record, Any]:
        assert self.of.answer is not None
        answer, own, asked = partial(_answered, self.of.answer), host_record(state), host_record(question)
        given = pure(self.of.name, answer, own, asked, block.host, now)
        for at in {0, len(block.clients) - 1} if len(block.clients) > 1 else ():
            who = np.array([at])
            self._as_alone(at, given, answer(take(own, who), asked, block.host.only(who), now))
        self.answers.append(_named(given[1]))
        return self.of.answer(state, question, block, now)

    def _as_alone(self, at: int, given: tuple[Record, Any], alone: tuple[Record, Any]) -> None:
        """AssertionError if a client's state or answer is another beside those of its block than alone."""
        for together, one in zip(map(_named, given), map(_named, alone), strict=True):
            for name, values in together.items():
                near = 1e-4 * float(np.abs(values).max(initial=0.0))
                if one[name].shape[1:] != values[at].shape or not np.allclose(values[at], one[name][0], 1e-3, near):
                    raise AssertionError(
                        f"{self.of.name}: {name or 'what a client keeps'} of a client is another beside others than "
                        "alone; arrays [n, ...] of clients have a row for each, and sums over one client's take axis=1"
                    )

    def absorb(self, server: Record, total: Record, now: Round) -> Record:
        assert self.of.absorb is not None
        self._compare(total, now)
        absorbed: Record = pure(self.of.name, self.of.absorb, server, total, now)
        return absorbed

    def hear(self, state: Record, total: Record, block: Block, now: Round) -> Record:
        assert self.of.hear is not None
        if total is not self.total:
            self._compare(total, now)
        self.total = total
        return self.of.hear(state, total, block, now)

    def _compare(self, total: Record, now: Round) -> None:
        """Note what was sent; AssertionError if the sum is another one."""
        totals = {} if self.of.keeps or now.leaving is not None else _named(total)
        for name, field in fields_of(self.of).items() if self.answers else ():
            each = np.concatenate([answer[name] for answer in self.answers])
            if field.sender is not None:
                each[np.flatnonzero(now.present) != field.sender] = 0
            self.sent[f"{self.of.name}/{name}"] = each
            if name in totals:
                apart = np.abs(each.sum(axis=0, dtype="f8") - totals[name]).max(initial=0.0)
                if apart > len(each) * (field.scale + ROUNDING * np.abs(each).max(initial=0.0)):
                    raise AssertionError(f"{self.of.name}: the sum of {name} is {apart:g} from that of its answers")


def _answered(answer: Callable[..., tuple[Any, Any]], *given: object) -> tuple[Record, Any]:
    """What a function answers, made."""
    state, upload = answer(*given)
    return state, upload.made() if isinstance(upload, Lazy) else upload


def _rounds(job: Job, at: Ready, rounds: int, measured: int = 0, sent: Named | None = None) -> Iterator[Played]:
    """`rounds`; with `sent`, into which uploads come, functions are tested."""
    ranks, setup, exchanges = at.ranks, at.algorithm.setup, at.algorithm.exchanges
    if sent is not None:
        setup, exchanges = (tuple(_Listener(one, sent).exchange() for one in some) for some in (setup, exchanges))
    server, clients = play(setup, at.server, at.clients, at.everybody, ranks)
    yield _played(at, 0, server, clients, {})
    for index in range(rounds):
        attempt: int | None = 0
        while attempt is not None:
            if attempt == job.participation.attempts:
                raise TooFewClients(f"round {index + 1}: void in every attempt; raise [participation] attempts")
            now = next_round(job, ranks.clients, exchanges, index, attempt, at.key)
            server, clients = play(exchanges, server, clients, now, ranks)
            attempt = next_attempt(job, now, exchanges, attempt)
        columns: dict[str, float | None] = {}
        if measured and (index + 1) % measured == 0:
            end = server, at.ranks.blocks, clients, at.everybody._replace(index=index), at.ranks
            columns, _ = measure(at.algorithm.measures, at.algorithm, *end)
            model = at.algorithm.model(server) if at.ranks.serves else ()
            columns |= at.tests.measured(model, personal_models(at.algorithm, clients))[0]
        yield _played(at, index + 1, server, clients, columns)


def _played(at: Ready, round: int, server: ServerRecord, clients: States, columns: dict[str, float | None]) -> Played:
    ranks, comm = at.ranks, at.ranks.comm
    kept = [(_named(clients.take(i)), len(block.shards)) for i, block in enumerate(ranks.blocks)]
    own = [{name: leaf[j] for name, leaf in named.items()} for named, n in kept for j in range(n)]
    everybody = [*chain(*comm.allgather(own))]  # by rank, and so in the order of clients
    if ranks.serves:
        return Played(round, _named(at.algorithm.model(server)), _named(server), everybody, columns)
    return Played(round, {}, {}, everybody, {})


def _named(record: Any) -> Named:
    return {name: np.array(on_host(leaf)) for name, leaf in leaves(record)}


def _checked(job: AnyJob) -> Job:
    if isinstance(job, Job):
        return job
    return Job.check(job) if isinstance(job, Mapping) else Job.read(Path(job))


def _reproducible(job: AnyJob) -> Job:
    """The job; UsageError where noise and draws are secret, since no two runs have the same."""
    checked = _checked(job)
    if is_secure(checked):
        raise UsageError('[privacy] noise = "secure": no two runs draw the same; set noise = "test" to look inside')
    return checked


def _prepared(job: AnyJob) -> tuple[Job, Ready]:
    checked = _reproducible(job)
    return checked, prepare(checked, Solo())
