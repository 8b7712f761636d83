"""How much of a cluster a job asks for: from the command line and the forecast, checked against `sinfo`."""

from __future__ import annotations

from collections.abc import Sequence

from mpifed.batch import cluster, needs
from mpifed.batch.asked import Asked
from mpifed.batch.durations import is_number, limit_of, seconds_of
from mpifed.batch.needs import Needs
from mpifed.batch.script import Options
from mpifed.batch.slurm import has
from mpifed.core.errors import MpifedError, UsageError

_SIGNAL = "B:USR1@"
_DEFAULT_LEAD_S = 120  # of the scripts


def sized(asked: Asked, runs: int, whole: float, options: Options) -> tuple[Options, list[str]]:
    """The options that say how much is asked for, and the notes of forecast and cluster.

    Parameters
    ----------
    runs : that one job of the batch system plays: 1, or the points of a sweep without an array
    whole : what is still to do of them, in runs
    options : of sbatch, that were typed
    """
    cpus = _cpus(options)
    ranks, notes = asked.nodes * asked.tasks, []
    need: Needs | None = None
    if asked.forecast:
        need = needs.needs(asked.job, asked.changes, ranks, whole)
    elif asked.time is None:
        raise UsageError("--no-forecast: give --time, which it would be taken from")
    parts, unchecked = _partitions(asked.dry_run)
    time_s = seconds_of(asked.time) if asked.time else _time(asked, need, parts)
    lead_s = _lead(options, need)
    needs.check_time(time_s, lead_s, asked.time)
    if need is not None:
        notes += needs.told(need, time_s, lead_s, ranks, str(asked.job), "of each point, " * asked.array)
        if runs > 1:
            notes.append(f"note      {runs} points, one after the other in one job; --array: side by side")
    memory, more = _memory(asked, need, options, cpus, parts)
    notes += more
    wanted = cluster.Wanted(asked.nodes, asked.tasks, cpus, asked.gpus, time_s, memory.pop("node", 0))
    notes += _assumed(asked, wanted, unchecked) if parts is None else _checked(asked, wanted, parts)
    sizes: Options = {
        "nodes": str(asked.nodes),
        "ntasks-per-node": str(asked.tasks),
        "time": limit_of(time_s),
        **({"partition": asked.partition} if asked.partition else {}),
        **({"account": asked.account} if asked.account else {}),
        **({"gpus-per-node": str(asked.gpus)} if asked.gpus else {}),
        **({"signal": f"{_SIGNAL}{lead_s}"} if lead_s != _DEFAULT_LEAD_S else {}),
        **{name: f"{mib}M" for name, mib in memory.items()},
    }
    return sizes | options, notes


def _cpus(options: Options) -> int:
    """Of a rank."""
    text = options.get("cpus-per-task") or "1"
    if not is_number(text) or int(text) == 0:
        raise UsageError(f"--cpus-per-task={text}: expected a number from 1")
    return int(text)


def _time(asked: Asked, need: Needs | None, parts: Sequence[cluster.Partition] | None) -> float:
    """Where no --time is given: from the forecast, within what the partition allows."""
    assert need is not None
    names = asked.partition.split(",") if asked.partition else [one.name for one in parts or [] if one.default]
    limits = [one.limit_s for one in parts or [] if one.name in names]
    return min([need.time_s(), *limits])


def _lead(options: Options, need: Needs | None) -> int:
    """How long before the end the signal comes."""
    given = options.get("signal")
    if given is not None:
        after = given.rpartition("@")[2]
        if not given.startswith("B:USR1@") or not is_number(after):
            raise UsageError(f"--signal={given}: expected --signal=B:USR1@SECONDS, which the script passes on")
        return int(after)
    return need.lead_s() if need else _DEFAULT_LEAD_S


def _memory(
    asked: Asked, need: Needs | None, options: Options, cpus: int, parts: Sequence[cluster.Partition] | None
) -> tuple[dict[str, int], list[str]]:
    """`mem-per-cpu` to ask for, "node": MiB on each node; and a warning where less was given than is needed."""
    given = next((name for name in ("mem", "mem-per-cpu") if options.get(name)), None)
    if given is not None:
        mib = needs.mib_of(str(options[given]), given)
        node = mib if given == "mem" else mib * cpus * asked.tasks
        if need is not None and 0 < node < asked.tasks * need.rank_bytes / 2**20:
            what = f"--{given}={options[given]} gives {node} MiB on each node"
            least = asked.tasks * need.memory_mib()
            return {"node": node}, [f"warning   {what}, and the forecast is more: ask for {least} MiB on each"]
        return {"node": node}, []
    if need is None or "mem-per-gpu" in options:
        return {}, []
    node = asked.tasks * need.memory_mib()
    if parts and all(node.memory_mib <= 1 for part in parts for node in part.nodes):
        return {"node": node}, ["note      this cluster does not say how much memory its nodes have; none is asked for"]
    return {"node": node, "mem-per-cpu": -(-need.memory_mib() // cpus)}, []


def _partitions(dry_run: bool) -> tuple[list[cluster.Partition] | None, str]:
    """The cluster's partitions; of a dry run where it does not tell, None and why."""
    if not has("sinfo"):
        return None, "there is no sinfo here"
    try:
        return cluster.partitions(), ""
    except MpifedError as error:
        if not dry_run:
            raise
        return None, str(error)


def _assumed(asked: Asked, wanted: cluster.Wanted, why: str) -> list[str]:
    """What the job counts on, where nobody can say whether the cluster has it."""
    where = f"partition {asked.partition}" if asked.partition else "the default partition"
    memory = f", {wanted.memory_mib} MiB" if wanted.memory_mib else ""
    gpus = f", {wanted.gpus} GPUs" if wanted.gpus else ""
    return [
        f"warning   cluster not checked: {why}",
        f"assumed, not checked: {where} takes jobs, allows {limit_of(wanted.time_s)}, and has {wanted.nodes} node(s) "
        f"with {wanted.tasks * wanted.cpus} CPUs{memory}{gpus} each",
    ]


def _checked(asked: Asked, wanted: cluster.Wanted, parts: Sequence[cluster.Partition]) -> list[str]:
    """The cluster's verdict."""
    verdict = cluster.judge(parts, asked.partition, wanted)
    if verdict.errors:
        raise UsageError("\n".join(verdict.errors))
    return [f"warning   {warning}" for warning in verdict.warnings]
