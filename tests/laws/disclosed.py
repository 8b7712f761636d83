"""What the folder of a private run discloses, by file and key, where `[record] released_only` is set.

- "released": computed from noisy releases and public data alone; epsilon covers it.
- "public": follows from the job, numbers of rows and clients, seeds, libraries, and which clients participate or leave
  where that is public. Where it is secret, bytes and counts are those of the number of clients drawn.
- "raw": computed from training data without noise, or the data themselves; epsilon does not cover it. Files of
  this kind lie in folders with a note; columns and keys of this kind are empty.
- "timing": measured seconds, which vary with secret numbers of rows and clients; epsilon does not cover them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from mpifed.files.clients import CLIENTS
from mpifed.files.columns import TABLE
from mpifed.files.history_csv import HISTORY
from mpifed.files.model_file import MODEL
from mpifed.files.write import PART
from mpifed.privacy.disclosure import RAW_FOLDERS

RELEASED, PUBLIC, RAW, TIMING = "released", "public", "raw", "timing"
_EPSILONS = "epsilon_unamplified epsilon_paper epsilon_if_secret"
_COLLUDING = "epsilon_colluding epsilon_other_client colluding"
# (file, keys): a file without keys counts as a whole; keys of JSON are dotted; what is said about a model is in "...@"
_TABLE: dict[str, tuple[tuple[str, str], ...]] = {
    RELEASED: (
        (MODEL, "*"),
        ("run.json", f"digests.{MODEL}"),
        ("history.*", " ".join(column.name for column in TABLE if column.data == "test")),
    ),
    PUBLIC: (
        ("job.toml", ""),
        ("mlflow.json", ""),  # names of its runs there
        ("lock*", ""),  # that of a run which was killed; host and process stand in run.json too
        ("failure.txt", ""),  # the class of an error, and its exit code
        ("history.*", "round up_bytes down_bytes gradients"),
        ("ledger.jsonl", "schema job.* noise_multiplier shares release.* round clients crc"),
        (f"{MODEL}@", "name objective algorithm job_sha256"),
        ("run.json", f"protects ledger.lines ledger.crc {_COLLUDING}"),
        ("run.json", "name seed host ranks commit device versions.* blas loops mpi slurm_job process.* warnings"),
        ("run.json", "sources sources.* distributions distributions.* accepted_changes observed observed.*"),
        ("run.json", "job_sha256 private delta noise_multiplier rounds exit up_bytes down_bytes simulated.network.*"),
        *((name, f"epsilon {_EPSILONS}") for name in ("history.*", "run.json")),
        ("run.json", "exchanges exchanges.*.played exchanges.*.up_bytes exchanges.*.down_bytes exchanges.*.up_most"),
        ("run.json", "exchanges.*.down_most exchanges.*.sealed_most exchanges.*.opened_most exchanges.*.added"),
        ("run.json", "exchanges.*.up_clear exchanges.*.down_clear exchanges.*.gradients"),
        ("run.json", "simulated.*.latency simulated.*.transfer"),
    ),
    RAW: (
        *((f"{folder}/*", "") for folder in RAW_FOLDERS),
        ("history.*", "train_loss client_test_* rss_bytes"),
        (CLIENTS, ""),
        ("run.json", f"clients_tested clients_without_tests digests.{CLIENTS}"),
        ("run.json", "peak_rss_bytes"),
    ),
    TIMING: (
        ("history.*", "elapsed_s simulated_s"),
        ("tensorboard/*", ""),  # the columns of the history, and when each row was written
        ("wandb/*", ""),  # these, and the settings of the job
        ("run.json", f"digests.{HISTORY}"),
        ("run.json", "sha256 started ended elapsed_s seconds_per_round cpu_s exchanges.*_s"),
        ("run.json", "simulated_s simulated.*.compute simulated.*.encryption simulated.*.server"),
    ),
}  # fmt: skip


def kind_of(file: str, key: str = "") -> str | None:
    """The kind of a file, by its path in the run's folder, or of one of its keys; None where the table lacks it.

    An algorithm's own columns of the history are measured over training data, and so in no run with
    `released_only`. A file that a kill left half-written counts as the whole one.
    """
    file = PART.sub(r"\1", file)
    for kind, rows in _TABLE.items():
        for pattern, keys in rows:
            if fnmatchcase(file, pattern) and any(fnmatchcase(key, known) for known in keys.split() or [""]):
                return kind
    return None
