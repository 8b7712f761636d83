"""Methods with local steps and one upload a round: what the page of such a method may say, with FedAvg's defaults.

Every local step is x <- x - step (gradient + pull x) + push. Models are flat vectors: the server's [d], those of n
clients [n, d]; numbers of clients are [n, 1], or alike for all. Privacy, devices, sums, recording and audits stand in
no page: between a client and the others is a guard, `mpifed.privacy.open.Open` or a private one, which `LocalMethod`
alone calls. What clients keep, what they upload and what the server remembers are each method's own: `Any` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from typing_extensions import final

from mpifed.algorithms.initial import model_layout, model_template, start_model
from mpifed.algorithms.local import Local, LocalSteps
from mpifed.algorithms.rows import Rows, lazy_change
from mpifed.core.exchange import Exchange, Field, OwnRecord
from mpifed.core.record import Array, bare_leaves, map_leaves
from mpifed.maths.arrays import as_before, read_only
from mpifed.maths.optimizers import AVERAGE, ServerOptimizer

if TYPE_CHECKING:
    from mpifed.core.exchange import Lazy
    from mpifed.core.refusals import Refusal
    from mpifed.core.round import Round
    from mpifed.core.vector import Layout
    from mpifed.data.block import Block
    from mpifed.maths.objectives import Parameters
    from mpifed.maths.privacy.release import Release
    from mpifed.maths.problem import Weighted
    from mpifed.privacy.open import Open

# records of a method's own classes
State: TypeAlias = Any  # what clients keep, [n, ...]; before round 1 that of one client
Memory: TypeAlias = Any  # what the server keeps beside the model


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


class WithGradient(NamedTuple):
    """An upload, of which an audit knows both parts."""

    change: Array  # y_i - x
    gradient: Array  # of the client's whole loss, at the model sent


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
    prepare: ClassVar[Callable[..., tuple[State, Array]] | None] = None
    # (own, sent, change, local) -> what is sent, of change = y_i - x, [n, d]; None: the change
    upload: ClassVar[Callable[..., OwnRecord] | None] = None
    # (own, sent, change, upload, local) -> what clients keep that never leaves them; None: what they had
    retain: ClassVar[Callable[..., State] | None] = None
    # (own, sent, upload, local) -> what clients keep of the upload as it left them; None: nothing
    renew: ClassVar[Callable[..., State] | None] = None
    # (own, memory, local) -> what clients keep of the server's memory after the round; None: they are sent nothing
    hear: ClassVar[Callable[..., State] | None] = None
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

    @cached_property
    def layout(self) -> Layout:
        """Where the layers stand in a model."""
        return model_layout(self.problem)

    @final
    @cached_property
    def guard(self) -> Open:
        """What stands between clients and all others."""
        from mpifed.privacy.open import LocalWork, Open

        # a class that changes an upload, what it follows from, or what is kept, says anew what follows of it
        hooks = "step_for", "begin", "push", "descend", "upload", "renew", "stop"
        keeping = ("retain",) if self.retain is None else ("retain", "hear", *hooks)
        like, optimizer = self._template, self.client_optimizer
        scaled = optimizer.linear and optimizer.clip_norm is None  # changes are multiples of gradients
        work = LocalWork(
            self.most_steps,
            self.batch_size,
            optimizer,
            pull=self.pull,
            gain=self.gain if self.holds("gain", *hooks) and scaled else None,
            uniform=self.weights == "uniform",
            remembers=bool(bare_leaves(self.start_client(self.zeros))),
            hidden=self.private_state if self.holds("private_state", *keeping) else "what its `retain` gives",
            several=isinstance(like, tuple) or np.shape(like) != (self.layout.size,),
        )
        given = self.problem, self.layout, model_template(self.problem), work
        if self.problem.privacy is None:
            return Open(*given)
        from mpifed.privacy.guards import private_guard  # which no other job needs

        return private_guard(*given)

    @final
    def method_state(self, clients: State) -> State:
        """Of what clients keep, that of the method."""
        return clients if self.problem.compression is None else clients.own

    @property
    def _template(self) -> OwnRecord:
        """An upload of one client, as it travels."""
        like = self.like(self.zeros)
        return WithSlope(like, self.zeros) if self.slopes and self.uneven else like

    @cached_property
    def zeros(self) -> Array:
        """[d] zeros that take no memory."""
        return np.broadcast_to(np.zeros((), self.problem.dtype), self.layout.size)

    @cached_property
    def _models(self) -> dict[int, Array]:
        """The initial one, by the seed."""
        return {}

    def _initial(self, now: Round) -> Array:
        """[d] the initial model, for which every block of clients asks."""
        if now.seed not in self._models:
            self._models[now.seed] = read_only(self.layout.flat(start_model(self.problem, now)))
        return self._models[now.seed]

    @property
    @final
    def exchanges(self) -> tuple[Exchange, ...]:
        """The server receives the weighted sum of the clients' uploads, and with `prepare` one before.

        With `hear`, clients then receive its memory.
        """
        fields = self.guard.fields(self._template, self.degrees)
        if self.problem.compression is not None and isinstance(fields.value, Field):  # others are refused
            bits = self.problem.compression.bits(self.layout.size, 8 * self.zeros.itemsize)
            fields = fields._replace(value=replace(fields.value, coded=-(-bits // 8)))
        if self.problem.versions:
            from mpifed.algorithms.asynchronous import in_virtual_time  # which few jobs have

            return (in_virtual_time(self, fields),)
        changes = Exchange("changes", fields, self.ask, self.answer, self.receive)
        if self.prepare is None and self.hear is None:
            return (changes,)
        from mpifed.algorithms.more_exchanges import outcome, preparation  # which few methods have

        before = [preparation(self)] if self.prepare is not None else []
        return (*before, changes, *([outcome(self)] if self.hear is not None else []))

    @final
    def start_server(self, now: Round) -> Server:
        """The initial model, and what `start_memory` gives of it."""
        x, compression = self._initial(now), self.problem.compression
        estimate = () if compression is None else compression.start_server(x)
        server = Server(x, self.start_memory(x), self.server_optimizer.start(x), np.int64(0), estimate)
        if self.problem.versions:
            from mpifed.algorithms.asynchronous import all_out

            return server._replace(out=all_out(self.ask(server, now), self.problem.versions))
        return server

    @final
    def start_clients(self, block: Block, now: Round) -> State:
        """What `start_client` gives, for each client."""
        x = self._initial(now)
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
        plain = self.one_plain_step and start is None
        if plain and compression is None and self.upload is None and self.retain is None and self.renew is None:
            lazy = lazy_change(whole, sent.model, push)
            if lazy is not None:
                return own, lazy
        change = whole.change(sent.model, push, start)

        sloped = self.slopes and self.uneven

        def uploaded(change: Array) -> OwnRecord:
            upload = change if self.upload is None else self.upload(own, sent, change, local)
            return WithSlope(upload, local.slope(change)) if sloped else upload

        upload = map_leaves(_as_array, uploaded(change))
        kept = own
        if self.retain is not None:
            kept = self.retain(own, sent, read_only(change), map_leaves(read_only, upload), local)
        left, seen = guard.leave(upload, step, block, now)
        memory: State = ()
        if compression is not None:  # after what protects them: of a client's own noise it is post-processing
            left, seen, memory = compression.send(left, clients.memory, now, block.clients)
        if self.renew is not None:
            kept = self.renew(kept, sent, map_leaves(read_only, seen.change if sloped else seen), local)
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
        whole = mean.change if self.slopes and self.uneven else mean

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


def _as_array(leaf: Any) -> Array:  # of a hook
    """What a hook gives of an upload: also Python's numbers."""
    return read_only(np.asarray(leaf)) if isinstance(leaf, int | float) else leaf
