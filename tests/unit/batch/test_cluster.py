"""What a cluster has, against what a job asks for."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from pretended import SINFO

from mpifed.batch.cluster import Wanted, gpus_of, judge, parse
from mpifed.core.errors import UsageError

WANTED = Wanted(nodes=2, tasks=4, cpus=1, gpus=0, time_s=3600, memory_mib=8000)


def test_what_sinfo_prints() -> None:
    found = {one.name: one for one in parse(SINFO)}
    assert list(found) == ["debug", "long", "gpu", "closed", "later"]
    debug, gpu = found["debug"], found["gpu"]
    assert (debug.default, debug.available, debug.limit_s, debug.most_nodes) == (True, "up", 3600, 2)
    assert [node.name for node in debug.nodes] == ["n1", "n2", "n3"]
    assert (gpu.default, gpu.limit_s, gpu.most_nodes) == (False, math.inf, math.inf)
    assert gpu.nodes[0][1:] == ("idle", 64, 2, 512000, 4)
    assert [node.out for node in found["long"].nodes] == [False, False, True]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0), ("gpu:2", 2), ("gpu:a100:4(S:0-1)", 4), ("gpu:a100:2,gpu:v100:1", 3), ("craynetwork:4,gpu:1", 1),
        ("gpu", 1), ("shard:8", 0), ("", 0),
    ],
)  # fmt: skip
def test_gpus(gres: str, gpus: int) -> None:
    assert gpus_of(gres) == gpus


@pytest.mark.parametrize("state", ["down", "down*", "idle*", "drained", "draining", "fail", "maint", "unknown*"])
def test_nodes_out_of_service(state: str) -> None:
    (found,) = parse(f"p|up|infinite|1-infinite|n1|{state}|4|1|1|(null)")
    assert found.nodes[0].out


@pytest.mark.parametrize(
    ("asked", "changes", "error"),
    [
        (None, {}, None),
        (None, {"nodes": 3}, "--nodes 3: partition debug allows jobs of 2 node"),
        ("long", {"nodes": 4}, r"--nodes 4: partition long has 3 nodes"),
        (None, {"time_s": 3601}, "--time 1:01:00: partition debug allows 1:00:00; give --time 1:00:00"),
        ("long", {"time_s": 86400}, None),
        (None, {"tasks": 5}, "no node has 5 CPUs, the others have 4 CPUs; take fewer --ntasks-per-node"),
        (None, {"cpus": 2}, "no node has 8 CPUs"),
        (None, {"memory_mib": 8001}, r"no node has 8001 MiB, the others have 8000 MiB; .*\[data\] memory_gib"),
        (None, {"gpus": 1}, "no node has 1 GPUs, the others have 0 GPUs; take fewer --gpus-per-node"),
        ("gpu", {"nodes": 1, "gpus": 4}, None),
        ("gpu", {"nodes": 1, "gpus": 5}, "no node has 5 GPUs, the others have 4 GPUs"),
        ("closed", {"nodes": 1}, "partition closed is inact: it takes no jobs"),
        ("debug,long", {"time_s": 86400}, None),  # the second does
        ("debug,long", {"nodes": 9}, "partition debug .*\n?.*"),
    ],
)
def test_what_cannot_be(asked: str | None, changes: dict[str, Any], error: str | None) -> None:
    verdict = judge(parse(SINFO), asked, WANTED._replace(**changes))
    if error is None:
        assert verdict.errors == ()
    else:
        assert re.search(error, "\n".join(verdict.errors)), verdict.errors


def test_what_waits() -> None:
    (warning,) = judge(parse(SINFO), "long", WANTED._replace(nodes=3)).warnings
    assert "2 of the nodes that fit are in service (n3 is down*)" in warning
    (warning,) = judge(parse(SINFO), "later", WANTED._replace(nodes=1)).warnings
    assert "partition later is down: the job waits until it is up" in warning
    (warning,) = judge(parse(SINFO), "gpu", WANTED._replace(nodes=1, tasks=64)).warnings
    assert "a node has 32 cores" in warning


def test_some_nodes_fit() -> None:
    text = "p*|up|infinite|1-infinite|a|idle|8|1|9000|(null)\np*|up|infinite|1-infinite|b|idle|4|1|5000|(null)\n"
    (error,) = judge(parse(text), None, WANTED._replace(tasks=8)).errors
    assert error.startswith("partition p: only 1 of the 2 nodes asked for have 8 CPUs and 8000 MiB, the others have 4 ")


def test_a_cluster_that_does_not_say_its_memory() -> None:
    text = "p*|up|infinite|1-infinite|a|idle|8|1|1|(null)\n"
    assert judge(parse(text), None, WANTED._replace(nodes=1)).errors == ()


def test_no_such_partition() -> None:
    with pytest.raises(UsageError, match=r"--partition fast: no partition has that name; .* debug \(default\), long"):
        judge(parse(SINFO), "fast", WANTED)
    with pytest.raises(UsageError, match="no default partition: give --partition; this cluster has long"):
        judge(parse(SINFO.replace("*", ""))[1:2], None, WANTED)
