"""The tables of a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen

from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.functions import Constraint
from mpifed.comm.channels.base import Protection
from mpifed.contract import fields_of, own_module
from mpifed.core.errors import UsageError
from mpifed.core.tables import ReadOnlyTable, Table, dotted
from mpifed.files.columns import HistoryTarget, target_of
from mpifed.files.expected import Checked
from mpifed.hyperparameters import Size, Weight
from mpifed.job.settings import Kind, Optimizer, Settings, tables_in
from mpifed.maths.compression import Compression
from mpifed.maths.objectives import Objective
from mpifed.maths.optimizers import ClientOptimizer, ServerOptimizer
from mpifed.maths.privacy.settings import Privacy
from mpifed.maths.regularizers import Regularizer
from mpifed.maths.terms import Term
from mpifed.observers import Observer
from mpifed.text import wrong_name

# marks keys and tables on which no bit of a run depends
_FREE = {"free": True}
_OTHER_ENDS = ("seconds", "epsilon")  # keys of [stop] that end a run by no evaluation
Positive = Annotated[int, Gt(0), Le(10**15)]
Security = Literal["plain", "masked", "encrypted"]
Spread = Annotated[float, Ge(0), Le(10)]  # a factor of 22,026
NotNegative = Annotated[int, Ge(0), Le(10**15)]


def _target(text: str) -> str:
    target_of(text)
    return text


@dataclass(frozen=True, kw_only=True)
class DataTable(Settings):
    """Where the data are, and how they are read."""

    path: str = field(metadata=_FREE)
    """Folder that `mpifed data` made."""
    block: Positive | Literal["auto"] = "auto"
    """Clients computed together, in batched matrix products; auto: as many as rows and model make worth it, a number
    that job.toml has."""
    memory_gib: Weight = field(default=4.0, metadata=_FREE)
    """Memory for shards, per rank, in GiB; data that do not fit are read again in every round."""
    state_gib: Weight = field(default=4.0, metadata=_FREE)
    """Memory for the clients' states between rounds, per rank, in GiB; the rest is on the disk."""
    verify: bool = field(default=True, metadata=_FREE)
    """Compare the checksums of all shards before round 0."""


@dataclass(frozen=True, kw_only=True)
class Participation(Settings):
    """Which clients participate in a round, and what happens when clients leave within it."""

    clients_per_round: Positive | None = None
    """Clients drawn for each round, uniformly; all where absent."""
    dropout_rate: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Probability that a participating client leaves within the round (simulated)."""
    max_dropouts: NotNegative = 0
    """Clients who may leave; if more do, the round is void, and its sum is never opened."""
    stragglers: Annotated[float, Ge(0), Le(1)] | None = None
    """Share of a round's clients who have no time for all their local steps or passes, drawn anew for each round, the
    same for all methods: each does a number of them drawn uniformly, at least one and not all (simulated)."""
    drop_stragglers: bool = False
    """Stragglers are absent from the round, in place of uploading what they did."""
    attempts: Positive = 10
    """Times that a round whose first sum is void is run before the run ends."""


@dataclass(frozen=True, kw_only=True)
class Asynchrony(Settings):
    """Rounds in which nobody waits for all, in the virtual time of `[simulated_network]`: as a client's answer comes,
    another one starts from the newest model."""

    buffer: Positive
    """Answers that make a round: as many are averaged, and then the model changes."""
    concurrency: Positive
    """Clients at work at any time, as far as there are so many who do not wait in the buffer."""
    max_staleness: Annotated[int, Ge(0), Le(1000)] = 20
    """Rounds that an answer may have missed; one that has missed more is discarded. The server keeps as many models."""


@dataclass(frozen=True, kw_only=True)
class Aggregation(Settings):
    """How the clients' uploads are aggregated, and who can see single uploads."""

    arithmetic: Literal["exact", "exact-blocks"] = "exact"
    """exact: rounded to a grid and added as integers, the same bits for any number of ranks; exact-blocks: the sum over
    a block of clients is rounded as a whole."""
    security: Security | None = None
    """plain: the server can see each upload; masked: pairwise masks that cancel in the sum; encrypted:
    homomorphic encryption. Where absent, the default of the algorithm, mostly plain."""
    min_clients: Positive | None = None
    """Fewest clients whose sum is opened, if it is masked or encrypted (2 where absent). Where absent clients go on
    counting, the server's sum keeps the last uploads at positions that fewer fill; in the plain channel where this is
    given."""
    allow: list[str] = field(default_factory=list)
    """Exchanges or fields, by name, that may reveal sums of fewer clients."""
    bounds: dict[str, Size] = field(default_factory=dict)
    """Largest absolute value of an upload, by "exchange.field"; it sets the integers' size."""


@dataclass(frozen=True, kw_only=True)
class Record(Settings):
    """What is measured and recorded while the job runs."""

    evaluate_every: NotNegative = field(default=10, metadata=_FREE)
    """Rounds between evaluations of loss and accuracy; 0: never."""
    checkpoint_every: NotNegative = field(default=100, metadata=_FREE)
    """Rounds between checkpoints; 0: only when interrupted, and at the end."""
    evaluate_rows: Positive | None = None
    """Rows evaluated, drawn uniformly; all where absent."""
    certify_every: NotNegative = 0
    """Rounds between KKT certificates, at evaluated rounds; 0: only at the end."""
    client_tests: bool | None = field(default=None, metadata=_FREE)
    """Evaluate the clients' own test rows, which tells the server a number of each client; where absent, if the data
    have such rows, uploads are plain, and not `released_only`."""
    released_only: bool = field(default=False, metadata=_FREE)
    """Leave out all that is computed from training data and not covered by epsilon."""


@dataclass(frozen=True, kw_only=True)
class AuditTable(Settings):
    """Findings that `mpifed audit` accepts."""

    accept: list[str] = field(default_factory=list)
    """Findings that do not make `mpifed audit` end with exit code 71."""


@dataclass(frozen=True, kw_only=True)
class ServerTable(Settings):
    """The server, rank 0."""

    dedicated: bool | None = None
    """Rank 0 hosts no clients; where absent, only if uploads are masked or encrypted."""


@dataclass(frozen=True, kw_only=True)
class Compute(Settings):
    """Device and precision of the computations."""

    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """cuda: a CUDA device, by CuPy and PyTorch; auto: one if there is any, and work enough for it, as `mpifed check`
    says."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of models and of local arithmetic."""


@dataclass(frozen=True, kw_only=True)
class Stop(Settings):
    """What ends a run before its last round; a run that does not reach what is asked for here ends with code 69."""

    seconds: Size | None = None
    """Seconds of training, without evaluation."""
    reached: list[Annotated[str, Checked(_target)]] = field(default_factory=list)
    """Values that columns of the history must reach, all of them, at an evaluated round: `["test_accuracy>=0.95"]`, as
    `mpifed compare --to` has them; certificates are then measured at each. With `feasibility<=...` limits need not be
    met exactly."""
    patience: dict[str, Positive] = field(default_factory=dict)
    """By column of the history, rounds without a better value after which the run ends: `{test_loss = 50}`."""
    epsilon: Size | None = None
    """The most that a client may spend of its privacy budget; that of [privacy] where absent."""

    @property
    def targets(self) -> list[HistoryTarget]:
        """What `reached` says."""
        return list(map(target_of, self.reached))

    @property
    def columns(self) -> list[str]:
        """The columns by which `reached` and `patience` decide."""
        return [*(target.column for target in self.targets), *self.patience]


@dataclass(frozen=True, kw_only=True)
class SimulatedNetwork(Settings):
    """A model of a deployment: who is there, whose answers come, and when; by the costs of exchanges as measured here,
    or, with `delay_s`, by delays that are drawn by the seed."""

    name: Literal["data-center", "inter-region", "broadband", "lte", "satellite-leo", "satellite-geo"] | None = None
    """A network whose figures are known; `latency_s`, `up_bytes_per_s` and `down_bytes_per_s` replace its own."""
    latency_s: Weight | None = None
    """Round-trip latency of a client, in seconds."""
    up_bytes_per_s: Size | None = None
    """Rate from a client to the server."""
    down_bytes_per_s: Size | None = None
    """Rate from the server to a client."""
    delay_s: Size | None = None
    """Median seconds from a question to a client's answer, transfer and arithmetic included; in place of the figures
    and times of the other keys."""
    delay_spread: Spread = 0.0
    """Standard deviation of the logarithm of a delay, drawn anew for each answer (lognormal); 0: constant."""
    client_spread: Spread = 0.0
    """Standard deviation of the logarithm of a client's own factor of all its delays, drawn once."""
    loss: Annotated[float, Ge(0), Le(0.99)] = 0.0  # time would never suffice beyond
    """Probability that an answer never comes; with `[asynchrony]` another client starts when it should have come."""
    deadline_s: Size | None = None
    """Seconds that a round waits for answers, where they take `delay_s`; with `speeds`, seconds that a client has for
    local steps: it takes as many, or as many passes, as it then can, at least one and at most all."""
    speeds: list[Size] = field(default_factory=list, hash=False)
    """Local steps that clients take in a second, one number for each; of fewer numbers each client has one for the
    whole run, drawn by the seed."""
    over_selection: Annotated[float, Ge(1), Le(100)] = 1.0
    """How many times `[participation] clients_per_round` are asked; the first `clients_per_round` answers count."""
    availability: Annotated[float, Ge(0.01), Le(1)] = 1.0
    """Probability that a client is there in a round; those who take part are drawn of who is there."""
    mean_absence: Annotated[float, Ge(1), Le(100)] | None = None
    """Rounds that a client who goes away is away, on average, in a Markov chain of two states; where absent, a client
    is there or not in each round anew."""
    trace: Annotated[str, MinLen(1)] | None = None
    """A CSV file that says who is there in which round, in place of `availability`."""
    client_slowdown: Size = 1.0
    """Time of a client's arithmetic, relative to this machine's."""
    encryption: Literal["as-run", "published", "none"] = "as-run"
    """as-run: as measured here; published: by the times below for every value of a private exchange, however the run
    was aggregated."""
    # Paillier, by V. Sidorov, E. Y. F. Wei and W. K. Ng (2022), arXiv:2202.02960, as HyFDCA's authors use
    encrypt_s: Weight = 0.018882
    """Seconds to encrypt a value."""
    decrypt_s: Weight = 0.018865
    """Seconds to decrypt a value."""
    add_s: Weight = 0.000054
    """Seconds to add two ciphertexts."""
    ciphertext_bytes: Size = 512.0
    """Bytes of a ciphertext; the default is Paillier's, modulo the square of a modulus of 2048 bits."""
    ciphertext_values: Positive = 1
    """Values in a ciphertext; a message of fewer values takes a whole ciphertext."""

    @property
    def unsteady(self) -> bool:
        """Whether clients may be away."""
        return self.availability < 1 or self.trace is not None

    @property
    def loses(self) -> bool:
        """Whether answers of a synchronous round may not count."""
        return self.loss > 0 or self.over_selection > 1 or (self.deadline_s is not None and not self.speeds)


@dataclass(frozen=True, kw_only=True)
class ModelKeys(Settings):
    """Keys that [model] has beside those of its model, whatever the method."""

    start: str | None = None
    """A run's folder, or its model.safetensors: the model of round 0; by default the model's own, drawn by the seed."""


@dataclass(frozen=True, kw_only=True)
class LimitKeys(Settings):
    """Keys that every [[constraint]] has beside those of its term, whose mean must be at most `limit`."""

    limit: Annotated[float, Ge(-1e30), Le(1e30)]
    """Upper bound of the term."""
    margin: Weight = 0.0
    """The algorithm aims at limit - margin."""


MODEL, ALGORITHM, OBSERVER = Kind[Objective](Objective, ModelKeys), Kind[Algorithm](Algorithm), Kind(Observer)
TERM, CONSTRAINT = Kind[Term](Term), Kind[Term](Term, LimitKeys)
COMPRESSION = Kind[Compression](Compression, own=False)
REGULARIZER = Kind[Regularizer](Regularizer)
CLIENT = Optimizer[ClientOptimizer](ClientOptimizer, table="client_optimizer")
SERVER = Optimizer[ServerOptimizer](ServerOptimizer, table="server_optimizer")


def _name(text: str) -> str:
    """The name of a job, which is also that of its folder and of its batch job."""
    if why := wrong_name(text):
        raise ValueError(why)
    return text


@dataclass(frozen=True, kw_only=True)
class JobSettings(Settings):
    """All settings of one run."""  # of which tables with a `name` have all defaults; `Job` checks how they combine

    name: Annotated[str, Checked(_name)] = field(metadata=_FREE)
    """Name of the run; its folder is runs/NAME unless another is given."""
    rounds: Annotated[int, Gt(0), Lt(10**8)]  # a checkpoint's folder has eight digits for them
    """Rounds of communication, unless `[stop]` ends the run earlier."""
    data: DataTable
    model: Annotated[Table, MODEL]
    """Which model is trained, with its loss and penalties: `name`, and the keys of that model."""
    algorithm: Annotated[Table, ALGORITHM]
    """The method: `name`, and its hyper-parameters."""
    client_optimizer: Annotated[Table | None, CLIENT] = None
    """The clients' local steps, for methods that have an optimizer on the clients."""
    server_optimizer: Annotated[Table | None, SERVER] = None
    """The server's step along the clients' mean update, for methods that have an optimizer on the server."""
    minimize: Annotated[Table, TERM] = field(default_factory=lambda: {"name": "loss"})
    """What is minimized: a term, by default the loss; for methods with constraints."""
    constraint: list[Annotated[Table, CONSTRAINT]] = field(default_factory=list)
    """Terms, each with a `limit` that it must not exceed; for methods with constraints."""
    regularizer: Annotated[Table, REGULARIZER] | None = None
    """A non-smooth penalty or a set, by its proximal operator: `name`, and the keys of that regularizer."""
    compression: Annotated[Table, COMPRESSION] | None = None
    """What clients send in place of their uploads, in fewer bytes: `name`, and the keys of that compressor."""
    seed: Annotated[int, Ge(0), Lt(2**63)] = 1
    """Seed of all random numbers but keys and the noise of `[privacy]`; the same seed gives the same bits."""
    participation: Participation = field(default_factory=Participation)
    asynchrony: Asynchrony | None = None
    aggregation: Aggregation = field(default_factory=Aggregation)
    record: Record = field(default_factory=Record)
    server: ServerTable = field(default_factory=ServerTable, metadata=_FREE)
    compute: Compute = field(default_factory=Compute)
    stop: Stop = field(default_factory=Stop)
    privacy: Privacy | None = None
    audit: AuditTable = field(default_factory=AuditTable, metadata=_FREE)
    simulated_network: SimulatedNetwork | None = None
    observe: list[Annotated[Table, OBSERVER]] = field(default_factory=list, metadata=_FREE)
    """Who gets what is measured, when it is measured; a table for each. It changes no bit of the run."""

    @property
    def per_round(self) -> int | None:
        """Clients in a round; None for all."""
        return self.participation.clients_per_round if self.asynchrony is None else self.asynchrony.buffer

    @property
    def asked(self) -> int | None:
        """Clients who are asked in a round; None for all."""
        if self.per_round is None or self.simulated_network is None:
            return self.per_round
        return math.ceil(round(self.per_round * self.simulated_network.over_selection, 6))

    @property
    def unsteady(self) -> bool:
        """Whether clients may be away, or their answers not come."""
        network = self.simulated_network
        return network is not None and (network.unsteady or (network.loses and self.asynchrony is None))

    @property
    def min_clients(self) -> int:
        """Fewest clients whose sum is opened, with its default."""
        return self.aggregation.min_clients or (1 if self.channel == "plain" else 2)

    def protection(self) -> Protection:
        """The settings of secure aggregation, as `mpifed.comm` takes them."""
        return Protection(
            self.channel, self.min_clients, tuple(self.aggregation.allow), self.participation.max_dropouts
        )

    @property
    def dedicated(self) -> bool:
        """Whether rank 0 hosts no clients, if there are other ranks."""
        dedicated = self.server.dedicated
        return self.channel != "plain" if dedicated is None else dedicated

    @property
    def released_only(self) -> bool:
        """Whether the run's folder must disclose no more of the data than the private releases."""
        return self.privacy is not None and self.record.released_only

    @property
    def own_modules(self) -> set[str]:
        """The modules of the user's own classes and functions that the job names."""
        tables = self.model, self.minimize, self.regularizer or {}, self.algorithm, *self.constraint
        return {module for table in tables for value in table.values() if (module := own_module(value))}

    @property
    def method(self) -> type[Algorithm]:
        """The class that [algorithm] names."""
        return ALGORITHM.part(self.algorithm["name"])

    @property
    def channel(self) -> str:
        """The channel of private sums: plain, masked or encrypted."""
        return self.aggregation.security or self.method.default_security

    def make_objective(self) -> Objective:
        """The objective, with or without intercepts."""
        return MODEL.make(self.model)

    def make_minimize(self) -> Term:
        """The term whose mean is minimized."""
        return TERM.make(self.minimize)

    def make_constraints(self) -> tuple[Constraint, ...]:
        return tuple(Constraint(CONSTRAINT.make(each), each["limit"], each["margin"]) for each in self.constraint)

    def make_regularizer(self) -> Regularizer | None:
        return None if self.regularizer is None else REGULARIZER.make(self.regularizer)

    def make_observers(self) -> list[Observer]:
        """The observers that the job names; UsageError where one cannot be made."""
        observers: list[Observer] = []
        for number, table in enumerate(self.observe, 1):
            try:
                observers.append(OBSERVER.make(table))
            except UsageError:
                raise
            except Exception as error:  # of the user's own class
                what = f"{type(error).__name__}: {error}; correct its settings, or the class"
                raise UsageError(f'[observe {number}] name = "{table["name"]}": {what}') from error
        return observers


def _free() -> Iterator[str]:
    tables = tables_in(JobSettings)
    for key in fields(JobSettings):
        inner = fields_of(tables[key.name]) if key.name in tables else ()
        yield from [key.name] if key.metadata else (f"{key.name}.{each.name}" for each in inner if each.metadata)


FREE = tuple(_free())  # keys, and whole tables, on which no bit of a run depends, but for its evaluated rounds
# of a run that goes on: what ends it or is said of it, and a file that was read before round 0
RESUMABLE = (*FREE, "record", "rounds", "stop", "model.start")


def free_in(job: ReadOnlyTable) -> set[str]:
    """Those on which no bit of a run of this job depends: not its evaluated rounds, where these decide the result."""
    of_rounds = job.get("algorithm", {}).get("returns") == "best feasible"
    of_end = any(value not in ([], {}) for key, value in job.get("stop", {}).items() if key not in _OTHER_ENDS)
    return {*FREE} - ({"record.evaluate_every"} if of_rounds or of_end else set())


def is_free(key: str, free: Collection[str] = FREE) -> bool:
    """Whether runs that differ in a key "table.key" alone are the same, bit for bit."""
    return any(key == one or key.startswith(f"{one}.") for one in free)


def changes(
    before: ReadOnlyTable, now: ReadOnlyTable, form: Callable[[object], str] = repr, free: Collection[str] = ()
) -> list[str]:
    """The differences between two tables, but for those of `free` keys, as text."""
    old, new = dict(dotted(before)), dict(dotted(now))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key) and not is_free(key, free)]
    return [f"{key}: {form(old.get(key))} before, {form(new.get(key))} now" for key in keys]


def changes_of(before: ReadOnlyTable, after: ReadOnlyTable, free: Collection[str] = RESUMABLE) -> str:
    """The changes of a job, but for those of `free` keys, which affect no results; as text."""
    return "; ".join(sorted(changes(before, after, free=free)))
