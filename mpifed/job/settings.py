"""The settings of a run: the tables of its job, what follows from them, and the objects that they name."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from mpifed.algorithms.functions import Constraint
from mpifed.comm.channels.base import Protection
from mpifed.core.errors import UsageError
from mpifed.core.privacy import Privacy
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.core.text import wrong_name
from mpifed.job import schema
from mpifed.job.components import (
    ALGORITHM,
    MINIMIZE,
    MODEL,
    REGULARIZER,
    constraint,
    make,
    observer,
    of_class,
    with_intercepts,
)
from mpifed.maths.objectives import Objective
from mpifed.maths.regularizers import Regularizer
from mpifed.maths.terms import Term
from mpifed.observers import Observer


def _name(text: str) -> str:
    """The name of a job, which is also that of its folder and of its batch job."""
    if why := wrong_name(text):
        raise ValueError(why)
    return text


class Settings(schema.JobTable):
    """The tables of a job; their combination is checked by `mpifed.job.job.Job`."""

    name: Annotated[str, AfterValidator(_name)]
    """Name of the run; its folder is runs/NAME unless another is given."""
    rounds: Annotated[int, Field(gt=0, lt=10**8)]  # a checkpoint's folder has eight digits for them
    """Rounds of communication, unless `[stop]` ends the run earlier."""
    data: schema.DataTable
    model: Table
    """Which model is trained, with its loss and penalties: `name`, and the keys of that model."""
    algorithm: Table
    """The method: `name`, and its hyper-parameters."""
    client_optimizer: Table | None = None
    """The clients' local steps, for methods that have an optimizer on the clients."""
    server_optimizer: Table | None = None
    """The server's step along the clients' mean update, for methods that have an optimizer on the server."""
    minimize: Table = Field({"name": "loss"})
    """What is minimized: a term, by default the loss; for methods with constraints."""
    constraint: list[Table] = Field([])
    """Terms, each with a `limit` that it must not exceed; for methods with constraints."""
    regularizer: Table | None = None
    """A non-smooth penalty or a set, by its proximal operator: `name`, and the keys of that regularizer."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of all random numbers but keys and the noise of `[privacy]`; the same seed gives the same bits."""
    participation: schema.ParticipationTable = schema.ParticipationTable()
    aggregation: schema.AggregationTable = schema.AggregationTable()
    record: schema.RecordTable = schema.RecordTable()
    server: schema.ServerTable = schema.ServerTable()
    compute: schema.ComputeTable = schema.ComputeTable()
    stop: schema.StopTable = schema.StopTable()
    privacy: Privacy | None = None
    audit: schema.AuditTable = schema.AuditTable()
    simulated_network: schema.SimulatedNetworkTable | None = None
    observe: list[Table] = Field([])
    """Who gets what is measured, when it is measured; a table for each. It changes no bit of the run."""

    def protection(self) -> Protection:
        """The settings of secure aggregation, as `mpifed.comm` takes them."""
        return Protection(
            self.channel, self.aggregation.min_clients, tuple(self.aggregation.allow), self.participation.max_dropouts,
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
        return self.aggregation.security or str(of_class(ALGORITHM, self.algorithm, "default_security"))

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
        for number, (term, keys) in enumerate(map(split_constraint, self.constraint), 1):
            constraints.append(Constraint(make(constraint(number), term), keys.limit, keys.margin))
        return tuple(constraints)

    def make_observers(self) -> list[Observer]:
        """The observers that the job names; UsageError where one cannot be made."""
        observers: list[Observer] = []
        for number, table in enumerate(self.observe, 1):
            try:
                observers.append(make(observer(number), table))
            except UsageError:
                raise
            except Exception as error:  # of the user's own class
                what = f"{type(error).__name__}: {error}; correct its settings, or the class"
                raise UsageError(f'[observe {number}] name = "{table["name"]}": {what}') from error
        return observers

    def make_regularizer(self) -> Regularizer | None:
        return None if self.regularizer is None else make(REGULARIZER, self.regularizer)


def split_constraint(table: ReadOnlyTable) -> tuple[Table, schema.LimitKeys]:
    """(table of the term, limit and margin) of a valid `[[constraint]]`."""
    term = {key: value for key, value in table.items() if key not in schema.LimitKeys.model_fields}
    return term, schema.LimitKeys(**{key: float(value) for key, value in table.items() if key not in term})
