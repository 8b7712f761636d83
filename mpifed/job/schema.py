"""The tables of a job whose keys are the same for every objective and algorithm."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

CERTIFIED = (
    "kkt_residual",
    "stationarity",
    "feasibility",
    "complementarity",
    "duality_gap",
)  # columns that [stop] may bound
Positive = Annotated[int, Field(gt=0, le=10**15)]
NotNegative = Annotated[int, Field(ge=0, le=10**15)]
Real = Annotated[float, Field(ge=0, le=1e30)]
Factor = Annotated[float, Field(gt=0, le=1e30)]


class JobTable(BaseModel):
    """A table whose keys are the fields of the class."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DataTable(JobTable):
    """Where the data are, and how they are read."""

    path: str
    """Folder that `mpifed data` made."""
    block: Positive = 1
    """Clients computed together, in batched matrix products."""
    memory_gib: Real = 4.0
    """Memory for shards, per rank, in GiB; data that do not fit are read again in every round."""
    state_gib: Real = 4.0
    """Memory for the clients' states between rounds, per rank, in GiB; the rest is on the disk."""
    verify: bool = True
    """Compare the checksums of all shards before round 0."""


class ParticipationTable(JobTable):
    """Which clients participate in a round, and what happens when clients leave within it."""

    clients_per_round: Positive | None = None
    """Clients drawn for each round, uniformly; all where absent."""
    dropout_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a participating client leaves within the round (simulated)."""
    max_dropouts: NotNegative = 0
    """Clients who may leave; if more do, the round is void, and its sum is never opened."""
    attempts: Positive = 10
    """Times that a round whose first sum is void is run before the run ends."""


class AggregationTable(JobTable):
    """How the clients' uploads are aggregated, and who can see single uploads."""

    arithmetic: Literal["exact", "exact-blocks"] = "exact"
    """exact: rounded to a grid and added as integers, the same bits for any number of ranks; exact-blocks: the sum over
    a block of clients is rounded as a whole."""
    security: Literal["plain", "masked", "encrypted"] | None = None
    """plain: the server can see each upload; masked: pairwise masks that cancel in the sum; encrypted:
    homomorphic encryption. Where absent, the default of the algorithm, mostly plain."""
    min_clients: Positive = 2
    """Fewest clients whose sum is opened, if it is masked or encrypted."""
    allow: list[str] = []
    """Exchanges or fields, by name, that may reveal sums of fewer clients."""
    bounds: dict[str, Factor] = {}
    """Largest absolute value of an upload, by "exchange.field"; it sets the integers' size."""


class RecordTable(JobTable):
    """What is measured and recorded while the job runs."""

    evaluate_every: NotNegative = 10
    """Rounds between evaluations of loss and accuracy; 0: never."""
    checkpoint_every: NotNegative = 100
    """Rounds between checkpoints; 0: only when interrupted, and at the end."""
    evaluate_rows: Positive | None = None
    """Rows evaluated, drawn uniformly; all where absent."""
    certify_every: NotNegative = 0
    """Rounds between KKT certificates, at evaluated rounds; 0: only at the end."""
    metrics: list[Literal["macro_f1", "auc"]] = []
    """Further measures of the test data, as scikit-learn defines them: `test_macro_f1`, `test_auc`."""
    client_tests: bool | None = None
    """Evaluate the clients' own test rows, which tells the server a number of each client; where absent, if the data
    have such rows, uploads are plain, and not `released_only`."""
    released_only: bool = False
    """Leave out all that is computed from training data and not covered by epsilon."""


class AuditTable(JobTable):
    """Findings that `mpifed audit` accepts."""

    accept: list[str] = []
    """Findings that do not make `mpifed audit` end with exit code 71."""


class ServerTable(JobTable):
    """The server, rank 0."""

    dedicated: bool | None = None
    """Rank 0 hosts no clients; where absent, only if uploads are masked or encrypted."""


class ComputeTable(JobTable):
    """Device and precision of the computations."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """gpu: a CUDA device, by CuPy; auto: one if there is any."""
    memory_gib: Factor | None = None
    """Memory of the device for rows of data, in GiB; most of what is free where absent."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of models and of local arithmetic."""


class StopTable(JobTable):
    """What ends a run before its last round; a run that does not reach a certificate set here ends with code 69."""

    seconds: Factor | None = None
    """Seconds of training, without evaluation."""
    kkt_residual: Factor | None = None
    """The largest of `stationarity`, `feasibility` and `complementarity`, at most this, in a certificate at every
    evaluated round."""
    stationarity: Factor | None = None
    """Relative length of the gradient of the Lagrangian."""
    feasibility: Real | None = None
    """Relative excess over a limit; where absent, limits must be met exactly."""
    complementarity: Factor | None = None
    """Relative product of multiplier and distance from the limit."""
    duality_gap: Factor | None = None
    """Distance from a lower bound of the objective, at every evaluated round."""
    epsilon: Factor | None = None
    """The most that a client may spend of its privacy budget; that of [privacy] where absent."""

    @property
    def certificates(self) -> dict[str, float]:
        """The certificates that the last model must reach, by column."""
        bounds = {name: getattr(self, name) for name in CERTIFIED}
        return {name: bound for name, bound in bounds.items() if bound is not None}


class SimulatedNetworkTable(JobTable):
    """A time model of a deployment; it changes no bit of the run."""

    name: Literal["data-center", "inter-region", "broadband", "lte", "satellite-leo", "satellite-geo"] | None = None
    """A network whose figures are known; `latency_s`, `up_bytes_per_s` and `down_bytes_per_s` replace its own."""
    latency_s: Real | None = None
    """Round-trip latency of a client, in seconds."""
    up_bytes_per_s: Factor | None = None
    """Rate from a client to the server."""
    down_bytes_per_s: Factor | None = None
    """Rate from the server to a client."""
    client_slowdown: Factor = 1.0
    """Time of a client's arithmetic, relative to this machine's."""
    encryption: Literal["as-run", "published", "none"] = "as-run"
    """as-run: as measured here; published: by the times below for every value of a private exchange, however the run
    was aggregated."""
    # Paillier, by V. Sidorov, E. Y. F. Wei and W. K. Ng (2022), arXiv:2202.02960, as HyFDCA's authors use
    encrypt_s: Real = 0.018882
    """Seconds to encrypt a value."""
    decrypt_s: Real = 0.018865
    """Seconds to decrypt a value."""
    add_s: Real = 0.000054
    """Seconds to add two ciphertexts."""
    ciphertext_bytes: Factor = 512.0
    """Bytes of a ciphertext; the default is Paillier's, modulo the square of a modulus of 2048 bits."""
    ciphertext_values: Positive = 1
    """Values in a ciphertext; a message of fewer values takes a whole ciphertext."""


class ModelKeys(JobTable):
    """Keys that [model] has beside those of its model, whatever the method."""

    start: str | None = None
    """A run's folder, or its model.h5: the model of round 0; by default the model's own start, drawn by the seed."""


class LimitKeys(JobTable):
    """Keys that every [[constraint]] has beside those of its term, whose mean must be at most `limit`."""

    limit: Annotated[float, Field(ge=-1e30, le=1e30)]
    """Upper bound of the term."""
    margin: Real = 0.0
    """The algorithm aims at limit - margin."""
