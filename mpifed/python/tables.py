"""The tables of a job as objects, such as `mpifed.Participation(clients_per_round=4)`, with the keys of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest
from mpifed.job import schema

if TYPE_CHECKING:
    Participation, Aggregation, Record = schema.ParticipationTable, schema.AggregationTable, schema.RecordTable
    Stop, Compute = schema.StopTable, schema.ComputeTable
    SimulatedNetwork = schema.SimulatedNetworkTable
else:

    def _reporting(name: str, table: type[BaseModel]) -> type[BaseModel]:
        """A table whose errors are those of mpifed."""

        def __init__(self: BaseModel, **values: object) -> None:  # as TOML has them
            try:
                super(made, self).__init__(**values)
            except ValidationError as error:
                raise UsageError("; ".join(_said(name, table, one) for one in error.errors())) from None

        made: type[BaseModel] = type(
            name, (table,), {"__init__": __init__, "__module__": __name__, "__doc__": table.__doc__}
        )
        return made

    def _said(name: str, table: type[BaseModel], one: Any) -> str:  # as pydantic has it
        key = ".".join(map(str, one["loc"]))
        if one["type"] == "extra_forbidden":
            known = list(table.model_fields)
            return f"mpifed.{name}: {key}: no argument of that name{nearest(key, known)}; known are {', '.join(known)}"
        message = one["msg"][0].lower() + one["msg"][1:]
        return f"mpifed.{name}: {key + ' = ' if key else ''}{one['input']!r}: {message}"

    Participation = _reporting("Participation", schema.ParticipationTable)
    Aggregation = _reporting("Aggregation", schema.AggregationTable)
    Record = _reporting("Record", schema.RecordTable)
    Stop = _reporting("Stop", schema.StopTable)
    Compute = _reporting("Compute", schema.ComputeTable)
    SimulatedNetwork = _reporting("SimulatedNetwork", schema.SimulatedNetworkTable)
