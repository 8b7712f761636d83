"""The schemas of the files of a run: keys, types and ranges, which are validated when a file is read.

The code that reads a file decides what to do if it is invalid. Unknown keys are allowed: they are of a later version
or, in run.json, an algorithm's own numbers.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mpifed.core.errors import DataError
from mpifed.core.tables import Table
from mpifed.files.expected import Count, Digest, NotNegative, Positive, Text, expected
from mpifed.text import shown

_SHOWN = 80  # characters of an invalid value
Number = Annotated[float, Field(allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Schema(BaseModel):
    """A table of a file."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def unknown(self) -> list[str]:
        """Keys that are neither known nor an algorithm's own numbers."""
        others = self.model_extra or {}
        return [key for key, value in others.items() if not isinstance(value, (int, float, type(None)))]


Content = TypeVar("Content")


class Process(Schema):
    """`process` of run.json, and the contents of a lock."""

    host: Text
    pid: Annotated[int, Field(ge=0, le=2**32)]
    started: Count | None


class HeadJson(Schema):
    """Length and last CRC of a ledger."""

    lines: Count
    crc: Count


class CostJson(Schema):
    """The costs of an exchange that `mpifed show` prints."""

    up_bytes: NotNegative
    down_bytes: NotNegative
    crypto_s: NotNegative


class Network(Schema):
    """`simulated.network` of run.json."""

    name: Text | None
    latency_s: NotNegative
    up_bytes_per_s: NotNegative
    down_bytes_per_s: NotNegative
    encryption: Text
    ciphertext_bytes: NotNegative = 0.0
    ciphertext_values: Count = 1


class Times(Schema):
    """Simulated seconds of an exchange, by kind."""

    compute: NotNegative
    encryption: NotNegative
    latency: NotNegative
    transfer: NotNegative
    server: NotNegative


class Simulated(Schema):
    """`simulated` of run.json."""

    network: Network
    set_up: dict[Text, Times]
    rounds: dict[Text, Times]


class RunJson(Schema):
    """run.json; files of earlier versions may lack keys that have a default."""

    exit: Annotated[int, Field(ge=-255, le=255)] | None
    rounds: Count = 0
    name: Text = ""
    seed: Seed = 0
    slurm_job: Annotated[str, Field(pattern="^[0-9]{1,18}(_[0-9]{1,18})?$")] | None = None
    process: Process | None = None
    started: Text | None = None
    ended: Text | None = None
    host: Text = ""
    commit: Text | None = None
    device: Text = ""
    loops: Text = ""
    mpi: Text | None = None
    ranks: Count = 1
    versions: dict[Text, Text] = {}
    blas: list[Text] = []
    warnings: list[Text] | None = None
    job_sha256: Digest | None = None
    data_sha256: Digest | None = None
    digests: dict[Literal["history.csv", "clients.csv", "model.safetensors", "data.json"], Digest] | None = None
    start_sha256: Digest | None = None
    trace_sha256: Digest | None = None
    sources: dict[Text, Text] = {}
    distributions: dict[Text, Text] = {}
    accepted_changes: list[Text] = []
    observed: dict[Text, Count | None] = {}
    private: bool = False
    protects: Text = ""
    delta: NotNegative | None = None
    noise_multiplier: NotNegative = 0.0
    elapsed_s: NotNegative | None = None
    seconds_per_round: NotNegative | None = None
    cpu_s: NotNegative | None = None
    peak_rss_bytes: Count | None = None
    up_bytes: Count | None = None
    down_bytes: Count | None = None
    exchanges: dict[Text, CostJson] | None = None
    simulated_s: NotNegative | None = None
    simulated: Simulated | None = None
    ledger: HeadJson | None = None
    clients_tested: Count | None = None
    returned_round: Count | None = None
    clients_without_tests: Count | None = None
    epsilon: NotNegative | None = None
    epsilon_unamplified: NotNegative | None = None
    epsilon_paper: NotNegative | None = None
    epsilon_if_secret: NotNegative | None = None
    epsilon_other_client: NotNegative | None = None
    epsilon_colluding: NotNegative | None = None
    colluding: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None


class ConstraintJson(Schema):
    """A `[[constraint]]` of a job as run."""

    name: Text
    limit: Number
    classes: list[int] | None = None


class DataOfJob(Schema):
    """What job.toml says of the data."""

    block: Positive | Literal["auto"] = "auto"


class JobTables(Schema):
    """The keys of a run's job.toml that are read without the job's classes."""

    rounds: Positive | None = None
    seed: Seed | None = None
    data: DataOfJob = DataOfJob()
    constraint: list[ConstraintJson] = []
    network: Table | None = None
    privacy: Table | None = None
    stop: dict[Text, float | list[Text] | dict[Text, Positive]] = {}


class DataTables(Schema):
    """The data of a run."""

    sha256: Digest


class IdentityTables(Schema):
    """The identity of a run beside its job; see `mpifed.run.identity`."""

    data: DataTables
    sources: dict[Text, Text]
    libraries: dict[Text, Text]
    distributions: dict[Text, Text]
    blas: list[Text]
    accepted: list[Text]


class Same(Schema):
    """`run` of a checkpoint."""

    job: Table = {}
    identity: IdentityTables | None = None


FileName = Annotated[str, Field(pattern=r"^(server|clients-[0-9]{8}-[0-9]{5,8})\.states$")]
Span = Annotated[list[Count], Field(min_length=2, max_length=2)]


class AccountJson(CostJson):
    """All costs of an exchange; see `mpifed.comm.costs`."""

    played: NotNegative
    up_most: NotNegative
    down_most: NotNegative
    sealed_most: NotNegative
    opened_most: NotNegative
    up_clear: NotNegative
    down_clear: NotNegative
    added: NotNegative
    answer_s: NotNegative
    server_s: NotNegative
    work_s: NotNegative
    sum_s: NotNegative
    gradients: NotNegative = 0.0


class First(Schema):
    """The numbers of the first iterate that certificates need."""

    model_config = ConfigDict(extra="forbid")

    objective: Number | None
    gradient: Number | None
    excess: list[Number] | None
    length: Number | None


def _first(numbers: Table | None) -> Table | None:
    """Validates the keys of `First` together; algorithms with other measures have other keys."""
    if numbers and not numbers.keys().isdisjoint(First.model_fields):
        First.model_validate(numbers)
    return numbers


class Manifest(Schema):
    """manifest.json of a checkpoint."""

    round: Count
    elapsed_s: NotNegative
    up_bytes: Count
    down_bytes: Count
    exchanges: dict[Text, AccountJson]
    attempt: Count
    rows: Count = 0
    ledger: HeadJson | None
    first: Annotated[Table | None, AfterValidator(_first)]
    run: Same
    hosting: list[list[Count]]
    files: dict[FileName, Digest]
    segments: dict[FileName, Span]


_adapter = cache(TypeAdapter)  # 10 ms each, and data are opened by the thousand where someone tunes or tests


def conforming(schema: type[Content], value: object) -> Content:
    """A value of a file, validated and converted by its schema: a class, whose tables JSON has.

    Raises
    ------
    ValueError
        naming the key, the value and what was expected.
    """
    try:
        if issubclass(schema, Schema):
            return schema.model_validate(value)
        adapter: TypeAdapter[Content] = _adapter(schema)  # type: ignore[arg-type] # a class is hashable
        return adapter.validate_json(json.dumps(value, allow_nan=False), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        came = "missing" if first["type"] == "missing" else f"= {shown_value(first['input'])}: {expected(first)}"
        raise ValueError(f"{shown(key, _SHOWN)} {came}") from error


def checked(path: object, schema: type[Content], value: object, remedy: str) -> Content:
    """`conforming` for the file `path`; DataError, with the remedy, where the value is invalid."""
    try:
        return conforming(schema, value)
    except ValueError as error:
        raise DataError(f"{path}: {error}; {remedy}") from error


def shown_value(value: object) -> str:
    """Any value as a short line of text."""
    try:
        text = json.dumps(value, default=repr)
    except (ValueError, RecursionError):  # a number of too many digits, or tables in tables
        text = f"a {type(value).__name__} that is too large"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
