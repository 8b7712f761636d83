"""The resources that a job requests: from the command line and the forecast, checked against `sinfo`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mpifed.batch import cluster, needs
from mpifed.batch.durations import is_number, limit_of, seconds_of
from mpifed.batch.needs import Needs
from mpifed.batch.script import Options
from mpifed.batch.slurm import has
from mpifed.core.errors import MpifedError, UsageError

_SIGNAL = "B:USR1@"
_DEFAULT_LEAD_S = 120  # in the batch script


class SubmitRequest(NamedTuple):
    """The command-line options of `mpifed submit`."""

    job: Path
    changes: tuple[str, ...]
    out: Path | None
    nodes: int
    tasks: int  # per node
    time: str | None
    partition: str | None
    account: str | None
    gpus: int  # per node
    array: bool
    throttle: int | None
    forecast: bool
    dry_run: bool
    options: tuple[str, ...]  # further options of sbatch
    command: tuple[str, ...]  # arguments of mpifed, as typed


def sized(request: SubmitRequest, runs: int, whole: float, options: Options) -> tuple[Options, list[str]]:
    """The options of sbatch for nodes, time and memory, and notes on the forecast and the cluster.

    Parameters
    ----------
    runs
        Number of runs in one Slurm job: 1, or the points of a sweep without an array.
    whole
        The part of them that is still to do, in runs.
    options
        Options of sbatch from the command line.
    """
    cpus = _cpus(options)
    ranks, notes = request.nodes * request.tasks, []
    need: Needs | None = None
    if request.forecast:
        need = needs.needs(request.job, request.changes, ranks, whole)
    elif request.time is None:
        raise UsageError("--no-forecast: give --time, which otherwise comes from the forecast")
    parts, unchecked = _partitions(request.dry_run)
    time_s = seconds_of(request.time) if request.time else _time(request, need, parts)
    lead_s = _lead(options, need)
    needs.check_time(time_s, lead_s, request.time)
    if need is not None:
        notes += needs.notes(need, time_s, lead_s, ranks, str(request.job), "of each point, " * request.array)
        if runs > 1:
            notes.append(f"note      {runs} points, one after the other in one job; --array runs them in parallel")
    memory, more = _memory(request, need, options, cpus, parts)
    notes += more
    wanted = cluster.Wanted(request.nodes, request.tasks, cpus, request.gpus, time_s, memory.pop("node", 0))
    notes += _assumed(request, wanted, unchecked) if parts is None else _checked(request, wanted, parts)
    sizes: Options = {
        "nodes": str(request.nodes),
        "ntasks-per-node": str(request.tasks),
        "time": limit_of(time_s),
        **({"partition": request.partition} if request.partition else {}),
        **({"account": request.account} if request.account else {}),
        **({"gpus-per-node": str(request.gpus), "gpus-per-task": "1"} if request.gpus else {}),
        **({"signal": f"{_SIGNAL}{lead_s}"} if lead_s != _DEFAULT_LEAD_S else {}),
        **{name: f"{mib}M" for name, mib in memory.items()},
    }
    return sizes | options, notes


def _cpus(options: Options) -> int:
    """CPUs per rank."""
    text = options.get("cpus-per-task") or "1"
    if not is_number(text) or int(text) == 0:
        raise UsageError(f"--cpus-per-task={text}: expected a whole number, 1 or more")
    return int(text)


def _time(request: SubmitRequest, need: Needs | None, parts: Sequence[cluster.SlurmPartition] | None) -> float:
    """The time limit if no --time is given: from the forecast, at most the limit of the partition."""
    assert need is not None
    names = request.partition.split(",") if request.partition else [part.name for part in parts or [] if part.default]
    limits = [part.limit_s for part in parts or [] if part.name in names]
    return min([need.time_s(), *limits])


def _lead(options: Options, need: Needs | None) -> int:
    """Seconds between the signal and the time limit."""
    given = options.get("signal")
    if given is not None:
        after = given.rpartition("@")[2]
        if not given.startswith("B:USR1@") or not is_number(after):
            raise UsageError(
                f"--signal={given}: expected --signal=B:USR1@SECONDS, which the script forwards to the ranks"
            )
        return int(after)
    return need.lead_s() if need else _DEFAULT_LEAD_S


def _memory(
    request: SubmitRequest,
    need: Needs | None,
    options: Options,
    cpus: int,
    parts: Sequence[cluster.SlurmPartition] | None,
) -> tuple[dict[str, int], list[str]]:
    """Memory to request, in MiB by `mem-per-cpu` and "node", and a warning if less was given than is needed."""
    given = next((name for name in ("mem", "mem-per-cpu") if options.get(name)), None)
    if given is not None:
        mib = needs.mib_of(str(options[given]), given)
        node = mib if given == "mem" else mib * cpus * request.tasks
        if need is not None and 0 < node < request.tasks * need.rank_bytes / 2**20:
            what = f"--{given}={options[given]} gives {node} MiB on each node"
            least = request.tasks * need.memory_mib()
            return {"node": node}, [f"warning   {what}, and the forecast is more: request {least} MiB on each"]
        return {"node": node}, []
    if need is None or "mem-per-gpu" in options:
        return {}, []
    node = request.tasks * need.memory_mib()
    if parts and all(node.memory_mib <= 1 for part in parts for node in part.nodes):
        return {"node": node}, ["note      this cluster does not report the memory of its nodes; none is requested"]
    return {"node": node, "mem-per-cpu": -(-need.memory_mib() // cpus)}, []


def _partitions(dry_run: bool) -> tuple[list[cluster.SlurmPartition] | None, str]:
    """The cluster's partitions; None and the reason if `sinfo` cannot list them and this is a dry run."""
    if not has("sinfo"):
        return None, "no sinfo on PATH"
    try:
        return cluster.partitions(), ""
    except MpifedError as error:
        if not dry_run:
            raise
        return None, str(error)


def _assumed(request: SubmitRequest, wanted: cluster.Wanted, why: str) -> list[str]:
    """The assumptions about a cluster that cannot be checked."""
    where = f"partition {request.partition}" if request.partition else "the default partition"
    memory = f", {wanted.memory_mib} MiB" if wanted.memory_mib else ""
    gpus = f", {wanted.gpus} GPUs" if wanted.gpus else ""
    return [
        f"warning   cluster not checked: {why}",
        f"assumed, not checked: {where} takes jobs, allows {limit_of(wanted.time_s)}, and has {wanted.nodes} node(s) "
        f"with {wanted.tasks * wanted.cpus} CPUs{memory}{gpus} each",
    ]


def _checked(request: SubmitRequest, wanted: cluster.Wanted, parts: Sequence[cluster.SlurmPartition]) -> list[str]:
    """Warnings about the partition; UsageError if the job cannot run there."""
    verdict = cluster.judge(parts, request.partition, wanted)
    if verdict.errors:
        raise UsageError("\n".join(verdict.errors))
    return [f"warning   {warning}" for warning in verdict.warnings]
