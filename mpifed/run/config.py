"""Jobs: a TOML file, checked as a whole before any data is read.

A table's keys are the fields of a class. `[model]` and `[algorithm]` name theirs, one of the package's or the
user's own as "my_module:MyClass"; it is a dataclass whose annotations are checked. All errors are reported at once.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import tomli_w
from pydantic import AfterValidator, Field, ValidationError

from mpifed.algorithms.functions import Constraint
from mpifed.comm.channel import Protection
from mpifed.core.algorithm import Algorithm, wrong_exchanges
from mpifed.core.contract import own_module
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Problem
from mpifed.core.text import wrong_name
from mpifed.maths.objectives import Objective
from mpifed.maths.privacy.settings import Privacy
from mpifed.maths.regularizers import Regularizer
from mpifed.maths.terms import Term
from mpifed.run.fit import wrong_fit, wrong_together
from mpifed.run.job_file import listed_errors, wrong_values
from mpifed.run.job_file import put_key as put_key
from mpifed.run.job_file import read_table as read_table
from mpifed.run.job_file import set_value as set_value
from mpifed.run.methods import wrong_beside, wrong_limits, wrong_optimizers
from mpifed.run.parts import (
    ALGORITHM,
    MINIMIZE,
    MODEL,
    REGULARIZER,
    constraint,
    make,
    message,
    of_class,
    optimizers,
    with_intercepts,
    written_out,
    wrong_intercepts,
    wrong_with,
)
from mpifed.run.renamed import old_words
from mpifed.run.tables import (
    AggregationTable,
    AuditTable,
    ComputeTable,
    DataTable,
    EncryptionTable,
    LimitKeys,
    MaskingTable,
    ParticipationTable,
    RecordTable,
    ServerTable,
    SimulatedNetworkTable,
    StopTable,
    Table,
)


def _name(text: str) -> str:
    """The name of a job, which is also that of its folder and of its batch job."""
    if why := wrong_name(text):
        raise ValueError(why)
    return text


class Job(Table):
    """All settings of one run."""

    name: Annotated[str, AfterValidator(_name)]
    """Name of the run; its folder is runs/NAME unless another is given."""
    rounds: Annotated[int, Field(gt=0, lt=10**8)]  # a checkpoint's folder has eight digits for them
    """Rounds of communication, unless `[stop]` ends the run earlier."""
    data: DataTable
    model: dict[str, Any]
    """Which model is trained, with its loss and penalties: `name`, and the keys of that model."""
    algorithm: dict[str, Any]
    """The method: `name`, and its hyper-parameters."""
    client_optimizer: dict[str, Any] | None = None
    """The clients' local steps, for methods that have an optimizer on the clients."""
    server_optimizer: dict[str, Any] | None = None
    """The server's step along the clients' mean update, for methods that have an optimizer on the server."""
    minimize: dict[str, Any] = Field({"name": "loss"})
    """What is minimized: a term, by default the loss; for methods with constraints."""
    constraint: list[dict[str, Any]] = Field([])
    """Terms, each with a `limit` that it must not exceed; for methods with constraints."""
    regularizer: dict[str, Any] | None = None
    """A non-smooth penalty or a set, by its proximal operator: `name`, and the keys of that regularizer."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of all random numbers but keys and the noise of `[privacy]`; the same seed gives the same bits."""
    participation: ParticipationTable = ParticipationTable()
    aggregation: AggregationTable = AggregationTable()
    masking: MaskingTable = MaskingTable()
    encryption: EncryptionTable = EncryptionTable()
    record: RecordTable = RecordTable()
    server: ServerTable = ServerTable()
    compute: ComputeTable = ComputeTable()
    stop: StopTable = StopTable()
    privacy: Privacy | None = None
    audit: AuditTable = AuditTable()
    simulated_network: SimulatedNetworkTable | None = None

    @classmethod
    def check(cls, table: Mapping[str, Any], source: str = "job", *, imports: bool = True) -> Job:
        """The job that `table` describes; if not `imports`, the tables of the user's own classes are not checked.

        Raises
        ------
        UsageError
            listing every unknown key, wrong type and missing value.
        """
        wrong = list(wrong_values(table)) or list(old_words(table))
        if wrong:
            raise UsageError(listed_errors(source, wrong))
        try:
            job = cls.model_validate_json(json.dumps(table, default=str))
        except ValidationError as error:
            wrong += [message(entry, list(entry["loc"]), _known(entry["loc"])) for entry in error.errors()]
        for kind in (MODEL, MINIMIZE, ALGORITHM, REGULARIZER):
            if isinstance(part := table.get(kind.table), Mapping):
                wrong += wrong_with(kind, part, imports)
        constraints = table.get("constraint", [])
        for number, part in enumerate(constraints if isinstance(constraints, list) else [], 1):
            if isinstance(part, Mapping):
                wrong += _wrong_constraint(number, part, imports)
        if wrong:
            wrong += wrong_beside(table)
        elif imports or own_module(job.algorithm["name"]) is None:
            wrong = wrong_optimizers(table) + wrong_intercepts(job.model, job.algorithm)
            wrong += wrong_limits(table) if wrong else []
        if not wrong and (imports or own_module(job.algorithm["name"]) is None):  # it may choose the channel
            wrong = wrong_together(job)
        if wrong:
            raise UsageError(listed_errors(source, wrong))
        return job

    @classmethod
    def read(cls, path: Path, changes: Iterable[str] = ()) -> Job:
        """The job in a TOML file, with `table.key=value` changes applied."""
        return cls.check(read_table(path, changes), str(path))

    def table(self) -> dict[str, Any]:
        """The tables of the job as plain values, with all defaults."""
        table: dict[str, Any] = self.model_dump(exclude_none=True)
        table["server"]["dedicated"] = self.dedicated
        table["aggregation"] = self.aggregation.model_copy(update={"security": self.channel}).model_dump(
            exclude_none=True
        )
        table["model"] = written_out(MODEL, with_intercepts(self.model, self.algorithm))
        table["minimize"] = written_out(MINIMIZE, self.minimize)
        table["algorithm"] = written_out(ALGORITHM, self.algorithm)
        for name, kind in optimizers(self.algorithm).items():
            table[name] = written_out(kind, getattr(self, name) or {})
        if self.regularizer is not None:
            table["regularizer"] = written_out(REGULARIZER, self.regularizer)
        table["constraint"] = [
            {**written_out(constraint(number), term), **keys.model_dump()}
            for number, (term, keys) in enumerate(map(_split, self.constraint), 1)
        ]
        return {name: table[name] for name in type(self).model_fields if name in table}  # always in one order

    def text(self) -> str:
        """The job as TOML, with all defaults."""
        return tomli_w.dumps(self.table())

    def sum_settings(self, problem: Problem) -> dict[str, Any]:
        """The arguments of `mpifed.comm.aggregator.Aggregator` on the arithmetic of sums."""
        return {
            "exact": self.aggregation.arithmetic != "float",
            "dtype": self.compute.dtype,
            "bounds": self.aggregation.bounds,
            "scales": self.aggregation.scales,
            "target_scale": problem.target_scale,
        }

    @property
    def by_blocks(self) -> bool:
        """Whether the uploads of a block are summed before they are rounded, where the algorithm supports it."""
        return self.aggregation.arithmetic == "exact-blocks"

    def protection(self) -> Protection:
        """The settings of secure aggregation, as `mpifed.comm` takes them."""
        return Protection(
            self.channel, self.aggregation.min_clients, tuple(self.aggregation.allow), self.participation.max_dropouts,
            self.masking.neighbours, self.encryption.scheme, self.encryption.key_bits,
        )  # fmt: skip

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
    def channel(self) -> str:
        """The channel of private sums: plain, masked or encrypted."""
        name: str = self.aggregation.security or of_class(ALGORITHM, self.algorithm, "default_security")
        return name

    def make_objective(self) -> Objective:
        """The objective, with or without intercepts."""
        objective: Objective = make(MODEL, with_intercepts(self.model, self.algorithm))
        return objective

    def make_minimize(self) -> Term:
        """The term whose mean is minimized."""
        term: Term = make(MINIMIZE, self.minimize)
        return term

    def make_constraints(self) -> tuple[Constraint, ...]:
        constraints = []
        for number, (term, keys) in enumerate(map(_split, self.constraint), 1):
            constraints.append(Constraint(make(constraint(number), term), keys.limit, keys.margin))
        return tuple(constraints)

    def make_regularizer(self) -> Regularizer | None:
        return None if self.regularizer is None else make(REGULARIZER, self.regularizer)

    def make_algorithm(self, problem: Problem) -> Algorithm:
        """The algorithm for a problem, which may still lack the noise multiplier that is to be calibrated.

        Raises
        ------
        UsageError
            listing what in the job does not fit the data.
        """
        given = {name: make(kind, getattr(self, name) or {}) for name, kind in optimizers(self.algorithm).items()}
        algorithm: Algorithm = make(ALGORITHM, self.algorithm, problem=problem, **given)
        if own_module(name := self.algorithm["name"]) is not None and (wrong := list(wrong_exchanges(algorithm))):
            raise UsageError("\n".join(f'[algorithm] name = "{name}": {error}' for error in wrong))
        wrong = wrong_fit(self, algorithm)
        if wrong:
            raise UsageError("\n".join(["job and data do not fit together", *(f"  {line}" for line in wrong)]))
        return algorithm


def _split(table: Mapping[str, Any]) -> tuple[dict[str, Any], LimitKeys]:
    """(table of the term, limit and margin) of a valid `[[constraint]]`."""
    term = {key: value for key, value in table.items() if key not in LimitKeys.model_fields}
    return term, LimitKeys(**{key: float(value) for key, value in table.items() if key not in term})


def _wrong_constraint(number: int, table: Mapping[str, Any], imports: bool) -> list[str]:
    kind = constraint(number)
    limits = {key: value for key, value in table.items() if key in LimitKeys.model_fields}
    wrong = wrong_with(kind, {key: value for key, value in table.items() if key not in limits}, imports)
    try:
        LimitKeys.model_validate_json(json.dumps(limits, default=str))
    except ValidationError as error:
        wrong += [message(entry, [kind.table, *entry["loc"]], list(LimitKeys.model_fields)) for entry in error.errors()]
    return wrong


def _known(place: Sequence[int | str]) -> list[str]:
    """The keys of the table that `place` is in."""
    table: Any = Job
    for part in place[:-1]:
        annotated = table.model_fields[part].annotation if part in getattr(table, "model_fields", {}) else None
        table = next((kind for kind in get_args(annotated) if kind is not type(None)), annotated)
    if dataclasses.is_dataclass(table):
        return [field.name for field in dataclasses.fields(table)]
    return list(getattr(table, "model_fields", {}))
