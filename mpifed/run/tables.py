"""The tables of a job whose keys are the same for every objective and algorithm."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

CERTIFIED = ("kkt_residual", "stationarity", "feasibility", "complementarity", "duality_gap")  # what [stop] may bound
Positive = Annotated[int, Field(gt=0, le=10**15)]
NotNegative = Annotated[int, Field(ge=0, le=10**15)]
Real = Annotated[float, Field(ge=0, le=1e30)]
Factor = Annotated[float, Field(gt=0, le=1e30)]


class Table(BaseModel):
    """Its keys are the fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DataTable(Table):
    """`[data]`"""

    path: str
    block: Positive = 1  # clients computed together
    memory_gib: Real = 4.0  # shards kept in memory, per rank; the rest is streamed
    state_gib: Real = 4.0  # what clients keep, in memory per rank; the rest is on the disk
    verify: bool = True  # compare the shards' checksums at the start
    stage: str | None = None  # folder on a disk of each node, as "$TMPDIR", to which the shards are copied first


class ParticipationTable(Table):
    """`[participation]`"""

    clients_per_round: Positive | None = None  # all when absent
    dropout_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0  # the chance of each client present to leave within a round
    max_dropouts: NotNegative = 0  # how many may; if more do, the round is void, and its sum is never opened
    attempts: Positive = 10  # how often a round whose first sum is void is played before the run ends


class AggregationTable(Table):
    """`[aggregation]`"""

    arithmetic: Literal["exact", "exact-blocks", "float"] = (
        "exact"  # exact-blocks: a block's sum is rounded, as a whole
    )
    security: Literal["plain", "masked", "encrypted"] | None = None  # when absent, the algorithm's own; mostly plain
    min_clients: Positive = 2  # fewest clients whose sum is opened, masked or encrypted
    allow: list[str] = []  # exchanges or fields that may show values of fewer
    bounds: dict[str, Factor] = {}  # by "exchange.field", or a record of fields
    scales: dict[str, Factor] = {}


class RecordTable(Table):
    """`[record]`"""

    evaluate_every: NotNegative = 10  # rounds between measurements; 0: none at all
    checkpoint_every: NotNegative = 100  # rounds between checkpoints; 0: only when interrupted, and at the end
    evaluate_rows: Positive | None = None  # measured and certified, a uniform draw; all when absent
    certify_every: NotNegative = 0  # rounds between KKT certificates, at measured rounds; 0: at the end
    released_only: bool = False  # leave out what is computed from training data and not covered by epsilon
    transcript: NotNegative = 0  # rounds whose every message is written down, for `mpifed audit`


class MaskingTable(Table):
    """`[masking]`, of the masked channel"""

    neighbours: Positive | None = None  # clients with whom each shares masks; when absent, as many as are safe


class EncryptionTable(Table):
    """`[encryption]`, of the encrypted channel"""

    scheme: Literal["bfv", "threshold-bfv", "paillier"] = "bfv"
    key_bits: Literal[2048, 3072, 4096] = 2048  # of Paillier's modulus


class AuditTable(Table):
    """`[audit]`"""

    accept: list[str] = []  # findings that are known, and no reason for `mpifed audit` to end with exit code 7


class ServerTable(Table):
    """`[server]`"""

    dedicated: bool | None = None  # rank 0 hosts no clients; when absent, unless the channel is plain


class ComputeTable(Table):
    """`[compute]`"""

    device: Literal["auto", "cpu", "gpu"] = "auto"  # auto: a CUDA device where CuPy finds one
    memory_gib: Factor | None = None  # of the device, for rows; most of what is free when absent
    mpi: Literal["host", "device"] = "host"  # from where MPI takes the sums of a plain channel; device: if it can
    dtype: Literal["float32", "float64"] = "float32"


class StopTable(Table):
    """`[stop]`"""

    seconds: Factor | None = None  # of training, off-clock work left out
    # of a certificate, made at every measured round: the largest of the three numbers after it, or one by itself
    kkt_residual: Factor | None = None
    stationarity: Factor | None = None
    feasibility: Real | None = None  # when absent, limits must be met exactly
    complementarity: Factor | None = None
    duality_gap: Factor | None = None  # above a lower bound, at every measured round
    epsilon: Factor | None = None  # the most that a client may spend; else that of [privacy]

    @property
    def certificates(self) -> dict[str, float]:
        """What is asked of the last model, by column."""
        found = {name: getattr(self, name) for name in CERTIFIED}
        return {name: asked for name, asked in found.items() if asked is not None}


class SimulatedNetworkTable(Table):
    """`[simulated_network]`: a time model of a deployment; it changes no bit of the run"""

    name: Literal["data-center", "inter-region", "broadband", "lte", "satellite-leo", "satellite-geo"] | None = None
    # of one client; where absent, those of the network that is named
    latency_s: Real | None = None  # of a round trip, there and back
    up_bytes_per_s: Factor | None = None
    down_bytes_per_s: Factor | None = None
    client_slowdown: Factor = 1.0  # a client's arithmetic against this machine's
    # as-run: as measured in the run's channel; published: so much for each value of a private exchange, in any channel
    encryption: Literal["as-run", "published", "none"] = "as-run"
    # of Paillier: V. Sidorov, E. Y. F. Wei and W. K. Ng (2022), arXiv:2202.02960; what HyFDCA's authors took
    encrypt_s: Real = 0.018882
    decrypt_s: Real = 0.018865
    add_s: Real = 0.000054
    ciphertext_bytes: Factor = 512.0  # modulo the square of a modulus of 2048 bits
    ciphertext_values: Positive = 1  # that fit into one; a message of a few takes a whole one, and its time


class LimitKeys(Table):
    """What every `[[constraint]]` has beside its term."""

    limit: Annotated[float, Field(ge=-1e30, le=1e30)]
    margin: Real = 0.0  # the algorithm aims at limit - margin
