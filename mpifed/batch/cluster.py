"""The partitions and nodes of a cluster, as `sinfo` lists them, and whether a job could ever run there."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mpifed.batch.durations import limit_of, seconds_of
from mpifed.batch.slurm import call
from mpifed.core.errors import MpifedError, UsageError

_FIELDS = ("%P", "%a", "%l", "%s", "%N", "%T", "%c", "%Z", "%m", "%G")
SINFO = ("sinfo", "--all", "--noheader", "--Node", "--format=" + "|".join(_FIELDS))
_OUT = ("down", "drain", "fail", "error", "unknown", "future", "inval", "maint", "no_respond")


class Node(NamedTuple):
    """One node of a partition."""

    name: str
    state: str
    cpus: int  # hardware threads
    threads: int  # per core
    memory_mib: int  # RealMemory; 1 where the cluster does not say
    gpus: int

    @property
    def out(self) -> bool:
        """Whether nothing can start on it now."""
        return "*" in self.state or self.state.lower().startswith(_OUT)


class SlurmPartition(NamedTuple):
    """One partition and its nodes."""

    name: str
    default: bool
    available: str  # up, down, drain or inact
    limit_s: float  # infinite if there is none
    most_nodes: float  # that one job may have
    nodes: tuple[Node, ...]

    @property
    def working(self) -> list[Node]:
        return [node for node in self.nodes if not node.out]

    def __str__(self) -> str:
        largest = max(self.working, key=lambda node: (node.cpus, node.memory_mib), default=None)
        each = f", each {largest.cpus} CPUs and {largest.memory_mib} MiB or less" if largest else ""
        count = f"{len(self.working)} of {len(self.nodes)} nodes in service{each}"
        return f"partition {self.name} is {self.available}: {count}; time limit {limit_of(self.limit_s)}"


class Wanted(NamedTuple):
    """The resources that a job requests."""

    nodes: int
    tasks: int  # per node
    cpus: int  # per task
    gpus: int  # per node
    time_s: float
    memory_mib: int  # per node; 0 if unknown


class Feasibility(NamedTuple):
    """Why a job cannot run, and warnings where it can."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def partitions(environment: Mapping[str, str] = os.environ, limit_s: float = 60.0) -> list[SlurmPartition]:
    """All partitions of this cluster, from `sinfo`, which may take so long."""
    return parse(call(SINFO, environment, limit_s))


def most_points(environment: Mapping[str, str] = os.environ) -> int | None:
    """The largest size of a job array (MaxArraySize); None if the cluster does not report it."""
    try:
        match = re.search(r"^MaxArraySize\s*=\s*(\d+)", call(["scontrol", "show", "config"], environment), re.MULTILINE)
    except MpifedError:
        return None
    return int(match[1]) if match else None


def parse(text: str) -> list[SlurmPartition]:
    """The partitions in the output of `SINFO`, which has a line for each node of each partition."""
    rows: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == len(_FIELDS):
            rows.setdefault(fields[0], []).append(fields)
    return [_partition(name, lines) for name, lines in rows.items()]


def _partition(name: str, lines: Sequence[Sequence[str]]) -> SlurmPartition:
    _, available, limit, size, *_ = lines[0]
    most = size.rpartition("-")[2]
    nodes = tuple(
        Node(node, state, _number(cpus), max(1, _number(threads)), _number(memory), gpus_of(gres))
        for *_, node, state, cpus, threads, memory, gres in lines
        if node
    )
    limit_s = math.inf if limit in ("n/a", "") else seconds_of(limit)
    return SlurmPartition(
        name.rstrip("*"), name.endswith("*"), available, limit_s, int(most) if most.isdigit() else math.inf, nodes
    )


def _number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def gpus_of(gres: str) -> int:
    """The number of GPUs of a node: 'gpu:a100:4(S:0-1),craynetwork:2' -> 4."""
    counts = re.findall(r"(?:^|,)gpu(?::[^:,()]+)??(?::(\d+))?(?=[(,]|$)", gres)
    return sum(int(count or 1) for count in counts)


def judge(available: Sequence[SlurmPartition], names: str | None, wanted: Wanted) -> Feasibility:
    """Whether the job could run in any of the partitions `names`, or in the default; UsageError if one is unknown."""
    candidates = _chosen(available, names)
    verdicts = [_judge(partition, wanted) for partition in candidates]
    fitting = [verdict for verdict in verdicts if not verdict.errors]
    if fitting:
        return min(fitting, key=lambda verdict: len(verdict.warnings))
    return Feasibility(tuple(error for verdict in verdicts for error in verdict.errors))


def _chosen(available: Sequence[SlurmPartition], names: str | None) -> list[SlurmPartition]:
    by_name = {partition.name: partition for partition in available}
    listed = ", ".join(f"{partition.name}{' (default)' * partition.default}" for partition in available) or "none"
    if names is None:
        default = [partition for partition in available if partition.default]
        if not default:
            raise UsageError(f"no default partition: give --partition; this cluster has {listed}")
        return default
    for name in names.split(","):
        if name not in by_name:
            raise UsageError(f"--partition {name}: no partition has that name; this cluster has {listed}")
    return [by_name[name] for name in names.split(",")]


def _judge(partition: SlurmPartition, wanted: Wanted) -> Feasibility:
    where, errors, warnings = f"partition {partition.name}", [], []
    if partition.available in ("drain", "inact"):
        errors.append(f"{where} is {partition.available}: it takes no jobs; choose another with --partition")
    elif partition.available != "up":
        warnings.append(f"{where} is {partition.available}: the job waits until it is up")
    if wanted.time_s > partition.limit_s:
        limit = limit_of(partition.limit_s)
        errors.append(
            f"--time {limit_of(wanted.time_s)}: {where} allows {limit}; give --time {limit}: a job that has not ended "
            "by then is requeued and resumes from its checkpoint"
        )
    if wanted.nodes > min(partition.most_nodes, len(partition.nodes)):
        what = f"allows jobs of {partition.most_nodes:g}" if partition.most_nodes < len(partition.nodes) else "has"
        count = "" if partition.most_nodes < len(partition.nodes) else f" {len(partition.nodes)}"
        errors.append(f"--nodes {wanted.nodes}: {where} {what}{count} nodes")
    fitting = [node for node in partition.nodes if not _lacks(node, wanted)]
    if not errors and len(fitting) < wanted.nodes:
        errors.append(_too_small(where, partition.nodes, fitting, wanted))
    working = [node for node in fitting if not node.out]
    if not errors and len(working) < wanted.nodes:
        out = ", ".join(f"{node.name} is {node.state}" for node in fitting if node.out)
        warnings.append(f"{where}: {len(working)} of the nodes that fit are in service ({out}); the job waits for more")
    if not errors and sum(wanted.tasks * wanted.cpus <= node.cpus // node.threads for node in fitting) < wanted.nodes:
        cores = max(node.cpus // node.threads for node in fitting)
        warnings.append(
            f"--ntasks-per-node {wanted.tasks}: a node has {cores} cores, each with several hardware threads; more "
            "ranks than cores are no faster"
        )
    return Feasibility(tuple(errors), tuple(warnings))


def _lacks(node: Node, wanted: Wanted) -> list[str]:
    """The resources of which a node has too little."""
    lacking = []
    if wanted.tasks * wanted.cpus > node.cpus:
        lacking.append("CPUs")
    if wanted.memory_mib > node.memory_mib > 1:
        lacking.append("MiB")
    if wanted.gpus > node.gpus:
        lacking.append("GPUs")
    return lacking


def _too_small(where: str, nodes: Iterable[Node], fitting: Sequence[Node], wanted: Wanted) -> str:
    """The error for nodes that are too small: what is lacking, what they have, and what to do."""
    needs = {"CPUs": wanted.tasks * wanted.cpus, "MiB": wanted.memory_mib, "GPUs": wanted.gpus}
    remedies = {
        "CPUs": "fewer --ntasks-per-node on more --nodes",
        "MiB": "fewer --ntasks-per-node on more --nodes, or a smaller [data] memory_gib",
        "GPUs": "fewer --gpus-per-node",
    }
    others = [node for node in nodes if node not in fitting]
    lacking = [what for what in needs if any(what in _lacks(node, wanted) for node in others)]
    has = {
        what: sorted({{"CPUs": node.cpus, "MiB": node.memory_mib, "GPUs": node.gpus}[what] for node in others})
        for what in lacking
    }
    wanted_text = " and ".join(f"{needs[what]} {what}" for what in lacking)
    present_text = " and ".join(f"{' or '.join(map(str, has[what]))} {what}" for what in lacking)
    what = "; ".join(dict.fromkeys(remedies[what] for what in lacking))
    count = f"only {len(fitting)} of the {wanted.nodes} nodes asked for have" if fitting else "no node has"
    return f"{where}: {count} {wanted_text}, the others have {present_text}; take {what}, or another --partition"
