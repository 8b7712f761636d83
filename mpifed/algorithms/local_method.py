"""Local SGD with one upload a round: FedAvg's way, and all that the page of a method like it may say.

Clients take steps x <- keep x + push - step gradient on minibatches of their rows; the server moves by the mean of what
they upload. Methods differ in `pull` and `push`, and in what they keep:

    FedAvg      keep = 1 - 2 step l2
    FedProx     keep = 1 - step (mu + 2 l2)     push = step mu x_0
    SCAFFOLD    keep = 1 - 2 step l2            push = step (c_i - c)
    FedPDM      keep = 1 - step (rho + 2 l2)    push = step (lambda_i + rho x_0)

Intercepts have no l2: `keep` is a number for what penalties count, and one for what is free. Models are flat vectors:
the server's [d], those of n clients [n, d]; numbers of clients are [n, 1], or alike for all. Privacy, devices, sums,
recording and audits stand in no page: between a client and the others is a guard, `mpifed.privacy.open.Open` or a
private one, which `LocalMethod` alone calls. What clients keep, what they upload and what the server remembers are each
method's own: `Any` here. What few methods or jobs need has files of its own: `other_steps`, `partial_work`, `rows` (one
plain step), `whole_gradients`, `more_exchanges` and `refused_steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from typing_extensions import Self, final

from mpifed.algorithms.algorithm import Algorithm, Rows
from mpifed.core.exchange import Exchange, OwnRecord
from mpifed.core.record import Array, as_before, beside, map_leaves, read_only, take
from mpifed.hyperparameters import Count, Repeats
from mpifed.maths.objectives import concave_gradient
from mpifed.maths.optimizers import AVERAGE, ClientOptimizer, ServerOptimizer

if TYPE_CHECKING:
    from mpifed.core.lazy import Lazy
    from mpifed.core.refusals import Refusal
    from mpifed.core.round import Round
    from mpifed.core.vector import Layout
    from mpifed.data.block import Block
    from mpifed.maths.objectives import Parameters
    from mpifed.maths.privacy.release import Release
    from mpifed.maths.problem import Problem, Weighted
    from mpifed.privacy.open import Minibatch, Open

# records of a method's own classes
State: TypeAlias = Any  # what clients keep, [n, ...]; before round 1 that of one client
Memory: TypeAlias = State  # what the server keeps beside the model
Hook: TypeAlias = Callable[..., Any] | None

ROWS = 2048  # rows of one client in memory at once, as far as a minibatch is no larger


class Server(NamedTuple):
    """The server's state."""

    model: Array  # [d]
    memory: Memory  # what a method keeps beside the model, a record
    optimizer: State  # the state of `[server_optimizer]`, a record
    steps: np.int64  # rounds done
    estimate: State = ()  # what `[compression]` keeps of the clients' uploads, a record
    out: OwnRecord = ()  # what clients may have been sent who are still at work, see `mpifed.algorithms.asynchronous`


class WithMemory(NamedTuple):
    """What clients keep where uploads are compressed."""

    own: State  # of the method
    memory: State  # of `[compression]`, a record


class Sent(NamedTuple):
    """Broadcast of a round."""

    model: Array  # [d]
    memory: Memory  # what of the server's memory goes with it, a record
    step: np.float64  # the step size of local steps


class WithSlope(NamedTuple):
    """An upload of clients whose steps differ in number, for methods with `slopes`."""

    change: Array  # what `upload` gives
    gradient: Array  # by which plain steps lead to the client's change, (x - y_i) / (K_i step)


class Done(NamedTuple):
    """What `absorb` knows of a round."""

    t: int  # 1, 2, ...
    share: float  # of all clients' weight that is present
    step: float  # of local steps
    model: Array  # [d] the server's, before this round
    rate: float  # how far a constant gradient moves a client; with uneven steps of the largest shard; NaN with AdamW
    # (factor) -> [d] the factor times the mean gradient by which plain steps lead to the clients' changes, -change /
    # rate, each by its own number of steps; of methods with `slopes`
    gradient: Callable[[float], Array]


def slices(batch: int, repeats: int, epochs: bool, size: int) -> list[slice]:
    """Where minibatches lie among the rows drawn from a shard of `size` rows, for so many local steps, or passes."""
    size = size if epochs else min(batch, size)
    return [
        slice(start, min(start + batch, first + size))
        for first in range(0, repeats * size, size)
        for start in range(first, first + size, batch)
    ]


@dataclass(frozen=True)
class LocalSteps(Algorithm):
    """Clients take SGD steps on minibatches of their own rows: `local_steps` of them, or `local_epochs` passes.

    A client with fewer rows than `batch_size` has all of them in every minibatch, not in private jobs. All local steps
    of a round have that round's learning rate, but for `local_schedule`. Momentum and moments of `[client_optimizer]`
    are a client's within a round.

    Attributes
    ----------
    refuses : why not, in words: "momentum" of clients, or their moments; "steps" but plain ones; steps without a
        "rate", as AdamW's; "fewer" steps of some clients in a round; "cohorts" of unlike sizes; a "server_optimizer"
        but the mean; a "schedule" ending at 0
    lasting : whether how far clients were drawn in a round moves them in the next, by what they keep
    """

    refuses: ClassVar[Mapping[str, str]] = {}
    lasting: ClassVar[bool] = False
    # (move, at, model, kept) -> (what a step adds in place of move(at), what the next step is given as `kept`, first
    # None); move(z) is -step times the minibatch's whole gradient at z, [d] or [n, d]. The step changes `at` in place
    descend: ClassVar[Hook] = None
    batch_size: Count
    """Rows in a minibatch, drawn without replacement from a client's own."""
    client_optimizer: ClientOptimizer
    local_steps: Repeats | None = None
    """Local SGD steps in a round; give this or `local_epochs`. With neither it is one step."""
    local_epochs: Repeats | None = None
    """Local passes over all rows of the client in a round, the last minibatch of a pass possibly smaller."""
    local_least: Repeats | None = None
    """Fewest of these steps, or passes: each client does a number drawn anew for each round, uniformly from this to
    that; where absent, all do as many."""

    @property
    def pull(self) -> float:
        """mu of the clients' mu / 2 ||x - x_0||^2, x_0 being the model that they were sent."""
        return 0.0

    @property
    def stop(self) -> float:
        """Clients stop after a step whose direction has a squared norm of at most this; 0: never."""
        return 0.0

    def step_of(self, t: int) -> float:
        """The step size of local steps in round t = 1, 2, ..."""
        return self.client_optimizer.at(t)

    def in_round(self, now: Round) -> Self:
        """The method as all know it to be in a round: where `local_steps` follows from that, say, another one."""
        return self

    def step_for(self, step: float, count: int) -> float:
        """The step size of a client that takes so many steps in a round, whose step size is `step`."""
        return step

    # --- how many steps, and how far they lead ------------------------------------------------------------------------

    @property
    def varying(self) -> bool:
        """Whether clients do unlike numbers of local passes, or steps, in a round."""
        return bool(self.local_least or self.problem.stragglers) or self.problem.steps_in_time is not None

    @property
    def repeats(self) -> int:
        """How many local passes, or steps, a client does in a round, at most."""
        return self.local_epochs or self.local_steps or 1

    @final
    def repeats_of(self, now: Round, clients: Array) -> Array:
        """[n] how many local passes, or steps, clients do in a round."""
        if self.varying:
            from mpifed.algorithms.partial_work import repeats_of  # which no other job needs

            return repeats_of(self, now, clients)
        return np.full(len(clients), self.repeats)

    @final
    def steps_of(self, rows: Array, repeats: Array) -> Array:
        """[n] the local steps of clients with so many rows, who do so many passes, or steps."""
        return repeats * -(-rows // self.batch_size) if self.local_epochs else repeats

    @final
    def taken(self, now: Round, clients: Array) -> Array:
        """[n] how many local steps clients take in a round."""
        return self.steps_of(self.problem.counts[clients], self.repeats_of(now, clients))

    @final
    @cached_property
    def most_steps(self) -> int:
        """Those of the largest shard, at most."""
        return int(self.steps_of(np.int64(self.problem.most), np.int64(self.repeats)))

    @cached_property
    def uneven(self) -> bool:
        """Whether some clients take more steps than others, by numbers of rows and draws, which all know."""
        return self.varying or bool(self.steps_of(self.problem.counts.min(), np.int64(self.repeats)) != self.most_steps)

    @property
    def plain(self) -> bool:
        """Whether each local step is x <- keep x + push - step gradient."""
        optimizer = self.client_optimizer
        return optimizer.fused and not optimizer.momentum and self.descend is None and not self.stop

    @cached_property
    def one_plain_step(self) -> bool:
        """Whether each client takes a single step, along a minibatch's gradient."""
        single, optimizer = self.local_epochs is None and self.most_steps == 1, self.client_optimizer
        return single and self.descend is None and optimizer.fused and not optimizer.nesterov

    def rate_of(self, step: float, count: int) -> float:
        """How far a constant gradient g moves a client by its steps, x_i - x_0 = -rate g: `ClientOptimizer.rate`."""
        return self.client_optimizer.rate(self.step_for(step, count), count, self.pull)

    @final
    def keeps(self, step: float) -> tuple[float, float]:
        """1 - step (pull + 2 l2 + weight decay), and the same without l2, for intercepts."""
        rest = self.client_optimizer.weight_decay
        l2 = 2 * float(self.problem.objective.l2)
        return 1 - step * (self.pull + l2 + rest), 1 - step * (self.pull + 0.0 + rest)

    def conflicts(self) -> Iterator[Refusal]:
        """What of the job does not go with this method."""
        from mpifed.algorithms.refused_steps import refused_steps  # which no round needs

        yield from refused_steps(self)


@dataclass(frozen=True, eq=False)
class Local:
    """What the n clients of a block can do in a round: their hands. Models are [d], or [n, d] one of each client.

    Parameters
    ----------
    method : whose local steps these are
    block : the clients, and their rows
    now : the round, for keyed random numbers
    step : the step size of this round's local steps
    guard : what stands between these clients and all others
    """

    method: LocalSteps
    block: Block
    now: Round
    step: float
    guard: Open

    @property
    def problem(self) -> Problem:
        """What is public of the task."""
        return self.method.problem

    @property
    def staleness(self) -> Array:
        """[n, 1] how many rounds the clients' answers have missed."""
        missed = self.now.index - self.now.began(self.block.clients)
        return beside(self.block.shards[0].y, missed[:, None].astype(self.problem.dtype))

    @property
    def weight(self) -> Array:
        """[n] the clients' weights in a mean."""
        return self.guard.weights[self.block.clients]

    @cached_property
    def rate(self) -> float | Array:
        """How far a constant gradient moves a client in this round; [n, 1] where clients' steps differ in number.

        FedNova's eta ||a_i||_1, SCAFFOLD's K eta, the step of the server's prox, and what an audit divides by.
        UsageError where there is none, as with AdamW.
        """
        if not self.method.client_optimizer.linear:
            from mpifed.algorithms.refused_steps import no_rate  # which no round needs

            raise no_rate(self.method)
        return self._by_steps(self.method.rate_of)

    def slope(self, change: Array) -> Array:
        """[n, d] the gradient by which a client's plain steps lead to its change, -change / rate."""
        return change / -self.rate if self.method.uneven else change * (-1 / self.rate)

    @cached_property
    def own_step(self) -> float | Array:
        """The clients' step size, where it differs from `step`; [n, 1] where their steps differ in number."""
        return self._by_steps(self.method.step_for)

    def _by_steps(self, given: Callable[[float, int], float]) -> float | Array:
        """What is given of the step size and a number of steps."""
        if not self.method.uneven:
            return given(self.step, self.method.most_steps)
        from mpifed.algorithms.partial_work import by_steps  # which steps as many for all do not need

        return by_steps(self, given)

    def gradient(self, model: Array) -> Array:
        """[n, d] of each client's loss over all its rows at `model` [d] or [n, d], with penalties and weight decay.

        Networks draw nothing here, as in evaluation. The rows count among the gradients computed in a round.
        """
        from mpifed.algorithms.whole_gradients import whole_gradients  # which few methods need

        return whole_gradients(self, model)

    # --- minibatches --------------------------------------------------------------------------------------------------

    def minibatches(self, block: Block, gain: float = 1.0) -> Iterator[Minibatch]:
        """The minibatches of the round, step by step; all clients of `block` have the same number of steps and rows.

        Weights in a mean are times `gain`.

        Those of a round are disjoint as far as the shard goes. Where every gradient is made noisy, they are drawn
        independently instead, in secret: that is what the accountant assumes.
        """
        method, guard, now = self.method, self.guard, self.now
        keys = partial(self.problem.objective.pass_keys, now, clients=block.clients, secret=guard.draws != "once")
        if guard.draws == "anew":
            for r in range(method.repeats):
                taken = block.take(block.draw(now, f"minibatch {r}", method.batch_size, secret=True))
                yield guard.minibatch(taken, keys(r), gain)
            return
        count = int(method.repeats_of(now, block.clients[:1])[0]) if method.varying else method.repeats
        places = slices(method.batch_size, count, bool(method.local_epochs), int(block.counts[0]))
        rows = block.draw(now, "minibatch", places[-1].stop, secret=guard.draws == "secretly")
        together = max(1, ROWS // method.batch_size)  # steps whose rows are read at once
        for start in range(0, len(places), together):
            steps = places[start : start + together]
            first = steps[0].start
            batch = block.take(rows[:, first : steps[-1].stop])
            for r, at in enumerate(steps, start):
                yield guard.minibatch(batch.rows(at.start - first, at.stop - first), keys(r), gain)

    # --- steps --------------------------------------------------------------------------------------------------------

    def change(self, model: Array, push: Array | None = None, starts: Array | None = None) -> Array:
        """[n, d] x_i - model: each client's change after its local steps.

        In a private job there is no warning of numbers that are not finite: it would depend on the data.

        Parameters
        ----------
        model : [d], which penalties pull to, and where steps begin unless `starts` says otherwise
        push : [d] or [n, d], what each step adds
        starts : [n, d] where each client begins
        """
        method = self.method
        size = method.batch_size if method.local_epochs is None else self.problem.most

        def of_part(who: Array, part: Block, rows: int) -> Array:
            each = [few if few is None or few.ndim == 1 else take(few, who) for few in (push, starts)]
            taken = int(method.taken(self.now, part.clients[:1])[0]) if method.uneven else method.most_steps
            step = method.step_for(self.step, taken)
            local = self if step == self.step else replace(self, step=step)
            return local._steps(part, model, *each)

        with np.errstate(**self.guard.quiet):  # type: ignore[arg-type]  # of two of its names
            alike = method.repeats_of(self.now, self.block.clients) if method.varying else None
            changes: Array = self.block.joined(size, of_part, alike)
        return changes

    def _steps(self, block: Block, model: Array, push: Array | None, x: Array | None) -> Array:
        """`change` for clients with the same numbers of steps and rows, in arrays [n, d] that serve all steps."""
        method, guard = self.method, self.guard
        if method.one_plain_step and x is None:
            (batch,) = self.minibatches(block, -self.step)
            put = partial(guard.put_step, guard.record(model), batch, self.step, 0, block.clients, self.now)
            change = block.xp.empty((len(block.clients), len(model)), guard.dtype)
            return self.penalized(self.plain_step(change, put, model, push), model)
        model, x = model.astype(guard.dtype, copy=False), None if x is None else x.astype(guard.dtype)
        push = None if push is None else push.astype(guard.dtype, copy=False)
        if not method.plain:
            from mpifed.algorithms.other_steps import other_steps  # which no other job needs

            return other_steps(self, block, model, push, x)
        change, layout = block.xp.empty((len(block.clients), len(model)), guard.dtype), guard.layout
        down, (counted, free) = guard.record(change), method.keeps(self.step)
        moves, ones = ((change,), (1.0,)) if push is None else ((change, push), (1.0, 1.0))
        for r, batch in enumerate(self.minibatches(block, -self.step)):
            at = model if x is None else x
            if r < 2:  # from then on x is changed in place
                point = guard.record(at)
            self.put_step(block, point, at, batch, r, self.step, change, down)
            if x is None:
                x = layout.combination((*ones, counted - 1, 1.0), (*ones, free - 1, 1.0), (*moves, at, at))
            else:
                layout.combination((*ones, counted), (*ones, free), (*moves, x), x)
        assert x is not None  # there is a minibatch
        x -= model
        return x

    def plain_step(self, change: Array, put: Callable[[Parameters], object], model: Array, push: Array | None) -> Array:
        """`change` [n, d]: by one step from a common model along what `put` puts there, without convex penalties."""
        put(self.guard.record(change))
        self.add_concave(model, self.step, change)
        if push is not None:
            change += push
        return change

    def put_step(
        self, block: Block, point: Parameters, at: Array, batch: Minibatch, r: int, step: float,
        out: Array, down: Parameters,
    ) -> None:  # fmt: skip
        """Put -step (mean gradient + concave) at `at` into `out` [n, d]; `point` and `down` are their layers."""
        self.guard.put_step(point, batch, step, r, block.clients, self.now, down)
        self.add_concave(at, step, out)

    def add_concave(self, at: Array, step: float, out: Array) -> None:
        """Add -step times the gradient of the penalty that is not convex."""
        if self.problem.objective.nonconvex_penalty:
            counted = self.guard.layout.penalized
            out[..., counted] += concave_gradient(self.problem.objective, at[..., counted]) * -step

    def penalized(self, change: Array, at: Array, less: float = 1.0) -> Array:
        """`change` plus (keep - less) at, in place."""
        counted, free = self.method.keeps(self.step)
        if counted == free == less:
            return change
        return self.guard.layout.combination((1.0, counted - less), (1.0, free - less), (change, at), change)


@dataclass(frozen=True)
class LocalMethod(LocalSteps, Rows):
    """The base of methods whose clients take local steps and upload one record a round.

    A page says what differs from FedAvg. The hooks, in the order of a round:

    - `start_client(x)`, `start_memory(x)`: what a client, and the server, keeps before round 1;
    - `prepare(own, sent, local)`: what clients keep, and [n, d] what they send before local steps; then
      `prepared(memory, mean)`: the server's memory with its mean;
    - `broadcast(memory)`: what of the server's memory travels with the model;
    - `drift(sent)`: what each step adds to the gradient that all know;
    - `begin`, `push` (own, sent, local): where steps begin, [d] or [n, d], and what each step adds, by default -step
      times the drift;
    - `descend(move, at, model, kept)`: what a step adds in place of -step gradient, see `LocalSteps`;
    - `upload(own, sent, change, local)`: of change = y_i - x, what is sent: an array, or a NamedTuple of arrays as
      `like(x)` shows them for one client;
    - `retain(own, sent, change, upload, local)`: what of this the client keeps, and never sends;
    - `renew(own, sent, upload, local)`: what it keeps of the upload as all others see it, with its noise;
    - `absorb(memory, mean, done)`: from the mean upload, in the job's dtype, the memory and the direction in which the
      server moves;
    - `hear(own, memory, local)`: what the clients of the round keep, of the server's memory at its end.

    Attributes
    ----------
    slopes : whether it reads `done.gradient`; where clients' steps differ in number, theirs then travel beside uploads
    weights : of clients in the mean: "rows", by their number, or "uniform", all alike
    degrees : a record like `like`'s where parts are no parameters: in the targets of a regression a change is of degree
        1, its square of degree 2, a count of degree 0
    gain : upload = gain (y_i - x) + what is public or kept, where that is so, of several parts the first: noise on
        uploads of one part, and audits, need it; audits can't use it where clients clip, or take AdamW's steps
    """

    server_optimizer: ServerOptimizer = AVERAGE
    """What the server makes of the mean: by default the mean of the clients' models."""

    regularized: ClassVar[bool] = True  # supports [regularizer], and the model's nonconvex_penalty
    played = ("exchanges", "answer", "receive")  # pages have an `absorb` that is a hook
    # (own, sent, local) -> what clients keep, and [n, d] what they send before local steps; None: nothing
    prepare: ClassVar[Hook] = None
    # (own, sent, change, local) -> what is sent, of change = y_i - x, [n, d]; None: the change
    upload: ClassVar[Hook] = None
    # (own, sent, change, upload, local) -> what clients keep that never leaves them; None: what they had
    retain: ClassVar[Hook] = None
    # (own, sent, upload, local) -> what clients keep of the upload as it left them; None: nothing
    renew: ClassVar[Hook] = None
    # (own, memory, local) -> what clients keep of the server's memory after the round; None: they are sent nothing
    hear: ClassVar[Hook] = None
    slopes: ClassVar[bool] = False
    weights: ClassVar[Literal["rows", "uniform"]] = "rows"
    gain: ClassVar[float | None] = None
    degrees: ClassVar[OwnRecord] = None

    @property
    def private_state(self) -> str:
        """In words, what `retain` keeps that is not released, if later uploads depend on it."""
        return ""

    # --- what a page may say ----------------------------------------------------------------------------------------

    def start_client(self, x: Array) -> State:
        """What one client keeps before it first takes part: arrays, or a NamedTuple of arrays; () for nothing."""
        return ()

    def start_memory(self, x: Array) -> Memory:
        """What the server keeps beside the model."""
        return ()

    def prepared(self, memory: Memory, mean: Array) -> Memory:
        """The server's memory with the mean of what `prepare` gives."""
        return mean

    def broadcast(self, memory: Memory) -> Memory:
        """What of it travels with the model."""
        return ()

    def like(self, x: Array) -> OwnRecord:
        """An upload of one client: its parts and shapes."""
        return x

    def begin(self, own: State, sent: Sent, local: Local) -> Array | None:
        """[n, d] where each client's steps begin; None: all at the model sent."""
        return None

    def drift(self, sent: Sent) -> Array | None:
        """[d] what local steps follow beside the gradient, and all know; None: nothing."""
        return None

    def push(self, own: State, sent: Sent, local: Local) -> Array | None:
        """[d] or [n, d] what each step adds; None: nothing."""
        drift = self.drift(sent)
        return None if drift is None else -local.step * drift

    def absorb(self, memory: Memory, mean: OwnRecord, done: Done) -> tuple[Memory, Array]:
        """The server's memory, and the direction in which it moves."""
        return memory, mean

    def prox_step(self, done: Done) -> float:
        """The step of the regularizer's prox: how far a constant gradient moves the model where the method rests."""
        return self.server_optimizer.reach(done.t) * done.rate

    def judged(self, server: Server) -> Array:
        """[d] the model that is measured and saved."""
        return server.model

    # --- the round --------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """Where the layers stand in a model."""
        return self.problem.layout

    @cached_property
    def zeros(self) -> Array:
        """[d] zeros that take no memory."""
        return np.broadcast_to(np.zeros((), self.problem.dtype), self.layout.size)

    @final
    @cached_property
    def guard(self) -> Open:
        """What stands between clients and all others."""
        from mpifed.privacy.guard import guard_of

        return guard_of(self)

    @final
    def method_state(self, clients: State) -> State:
        """Of what clients keep, that of the method."""
        return clients if self.problem.compression is None else clients.own

    @property
    def template(self) -> OwnRecord:
        """An upload of one client, as it travels."""
        like = self.like(self.zeros)
        return WithSlope(like, self.zeros) if self.sloped else like

    @cached_property
    def sloped(self) -> bool:
        """Whether clients' slopes travel beside their uploads: no one rate is that of all, now or when they began."""
        falling = self.problem.versions and self.step_of(1) != self.step_of(2)
        return self.slopes and bool(self.uneven or falling)

    @property
    @final
    def exchanges(self) -> tuple[Exchange, ...]:
        """The server receives the weighted sum of the clients' uploads, and with `prepare` one before.

        With `hear`, clients then receive its memory.
        """
        if self.one_plain_step:
            import mpifed.algorithms.rows  # noqa: F401  # before the first round, which needs it

        fields = self.guard.fields(self.template, self.degrees)
        changes = Exchange("changes", fields, self.ask, self.answer, self.receive)
        compressed, versions = self.problem.compression is not None, self.problem.versions
        if self.prepare is None and self.hear is None and not compressed and not versions:
            return (changes,)
        from mpifed.algorithms.more_exchanges import with_others  # which few methods have

        return with_others(self, fields, changes)

    @final
    def start_server(self, now: Round) -> Server:
        """The initial model, and what `start_memory` gives of it."""
        x, compression = self.guard.initial(now), self.problem.compression
        estimate = () if compression is None else compression.start_server(x)
        server = Server(x, self.start_memory(x), self.server_optimizer.start(x), np.int64(0), estimate)
        if self.problem.versions:
            from mpifed.algorithms.asynchronous import all_out

            return server._replace(out=all_out(self.ask(server, now), self.problem.versions))
        return server

    @final
    def start_clients(self, block: Block, now: Round) -> State:
        """What `start_client` gives, for each client."""
        x = self.guard.initial(now)
        one = self.start_client(x)
        if self.problem.compression is not None:
            one = WithMemory(one, self.problem.compression.start(x))
        return map_leaves(lambda leaf: np.repeat(np.asarray(leaf)[None], len(block.clients), axis=0), one)

    @final
    def ask(self, server: Server, now: Round) -> Sent:
        """The model, what `broadcast` gives, and the step size."""
        step = self.step_of(int(server.steps) + 1)
        self.guard.check_model(server.model, step)
        return Sent(server.model, self.broadcast(server.memory), np.float64(step))

    @final
    def local(self, block: Block, now: Round, step: float) -> Local:
        """What a block's clients can do in a round of this step size."""
        return Local(self.in_round(now), block, now, step, self.guard)

    @final
    def answer(self, clients: State, sent: Sent, block: Block, now: Round) -> tuple[State, Weighted | Lazy]:
        """Local steps, and the hooks around them; what leaves a client is what the guard gives of its upload."""
        step, guard, compression = float(sent.step), self.guard, self.problem.compression
        own = self.method_state(clients)
        whole = self.local(block, now, step)
        sent = map_leaves(read_only, sent)
        own = own if now.leaving is None else map_leaves(lambda leaf: leaf.copy(), own)  # which a void round gives back
        shown = guard.shown(block)
        local = whole if shown is block else replace(whole, block=shown)
        start, push = self.begin(own, sent, local), self.push(own, sent, local)
        plain = self.one_plain_step and start is None and compression is None and not self.sloped
        if plain and self.upload is None and self.retain is None and self.renew is None:
            from mpifed.algorithms.rows import lazy_change  # which several steps do not need

            lazy = lazy_change(whole, sent.model, push)
            if lazy is not None:
                return own, lazy
        change = whole.change(sent.model, push, start)
        upload = change if self.upload is None else self.upload(own, sent, change, local)
        upload = map_leaves(_as_array, WithSlope(upload, local.slope(change)) if self.sloped else upload)
        kept = own
        if self.retain is not None:
            kept = self.retain(own, sent, read_only(change), map_leaves(read_only, upload), local)
        left, seen = guard.leave(upload, step, block, now)
        memory: State = ()
        if compression is not None:  # after what protects them: of a client's own noise it is post-processing
            left, seen, memory = compression.send(left, clients.memory, now, block.clients)
        if self.renew is not None:
            kept = self.renew(kept, sent, map_leaves(read_only, seen.change if self.sloped else seen), local)
        kept = map_leaves(as_before, kept, own)
        after = kept if compression is None else WithMemory(kept, memory)
        return after, guard.weighted(left, block.clients, own, after, sent)

    @final
    def receive(self, server: Server, total: Weighted, now: Round) -> Server:
        """Adds what the server's optimizer makes of the mean upload; then applies the regularizer's prox."""
        t, optimizer, x = int(server.steps) + 1, self.server_optimizer, server.model
        step, most = self.step_of(t), self.in_round(now).most_steps
        rate = self.rate_of(step, most)
        mean = map_leaves(lambda leaf: leaf.astype(x.dtype, copy=False), self.guard.arrive(total, step, now))
        share, estimate = self.guard.present(total) / self.problem.clients, server.estimate
        if self.problem.compression is not None:
            estimate, mean = self.problem.compression.receive(estimate, mean, share)
        whole = mean.change if self.sloped else mean

        def gradient(factor: float) -> Array:
            scaled: Array = mean * (-factor / rate) if whole is mean else factor * mean.gradient
            return scaled

        done = Done(t, share, step, x, rate, gradient)
        memory, direction = self.absorb(server.memory, whole, done)  # scalars are decoded into float64
        move, state = optimizer.step(server.optimizer, direction, t)
        x = x + move
        if self.problem.regularizer is not None:
            x = self.layout.flat(self.problem.regularizer.prox(self.record(x), self.prox_step(done)))
            state = optimizer.moved(state, x - server.model, t)
        return Server(x, memory, state, server.steps + 1, estimate, server.out)

    def record(self, x: Array) -> Parameters:
        """The layers of a model [..., d]."""
        return self.guard.record(x)

    @final
    def model(self, server: Server) -> Parameters:
        """The layers of what is judged."""
        return self.record(self.judged(server))

    @classmethod
    def accounts(cls) -> bool:
        """Not of what clients send before local steps, nor where their number differs from round to round."""
        return super().accounts() and cls.prepare is None and cls.in_round is LocalSteps.in_round

    def released(self) -> Release:
        """What the guard says."""
        from mpifed.algorithms.refused_steps import check_method

        check_method(self)
        return self.guard.released()

    # --- refusals ---------------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """Batch size, local steps, optimizers and privacy must fit the data and each other."""
        from mpifed.algorithms.refused_steps import wrong_method  # which no round needs

        return wrong_method(self)

    def conflicts(self) -> Iterator[Refusal]:
        """What of the job does not go with this method: those of its local steps, and of its upload."""
        from mpifed.algorithms.refused_steps import refused_method  # which no round needs

        yield from super().conflicts()
        yield from refused_method(self)


def from_zero(method: LocalMethod, x: Array) -> Array:
    """[d] zeros, as what clients or the server keep before round 1."""
    return np.zeros_like(x)


def whole_memory(method: LocalMethod, memory: Memory) -> Memory:
    """All of the server's memory, as what travels with the model."""
    return memory


def _as_array(leaf: Array | float) -> Array:
    """What a hook gives of an upload: also Python's numbers."""
    return read_only(np.asarray(leaf)) if isinstance(leaf, int | float) else leaf
