"""`[data] stage`: the shards that a node hosts are copied to its local disk, and read from there."""

from __future__ import annotations

from mpifed.comm.placement import Placement
from mpifed.comm.transport import Transport
from mpifed.run.agreement import agreed
from mpifed.shards import layout, staging
from mpifed.shards.store import ShardFolder


def staged(stage: str, verify: bool, data: ShardFolder, placement: Placement, transport: Transport) -> ShardFolder:
    """The data as this rank reads them, from the copy on its node. Collective.

    Each file is copied by a single rank of the node: a shard file by the first that hosts one of its clients,
    `federation.h5` by the node's first rank. The bits are the same.

    Raises
    ------
    UsageError, DataError
        on every rank, when a node has no such folder, no room in it, or a file is damaged.
    """
    with agreed(transport):
        checksum = staging.checksum_of(data) if transport.rank == 0 else ""
    checksum = transport.share(checksum)
    with agreed(transport):
        folder = staging.folder_of(stage, checksum)
    of_node = [rank for rank, node in enumerate(transport.nodes) if node == transport.nodes[transport.rank]]
    hosted = {rank: [client for clients in placement.of(rank) for client in clients] for rank in of_node}
    files = {layout.FEDERATION: (of_node[0], checksum)}  # who copies it, and its SHA-256
    for rank in of_node:
        for name, expected in staging.files_of(data, hosted[rank]).items():
            files.setdefault(name, (rank, expected))
    with agreed(transport):
        if transport.rank == of_node[0]:
            staging.make_ready(data, folder, files)
    with agreed(transport):
        for name, (rank, expected) in files.items():
            if rank == transport.rank:
                staging.copy(data.path / name, folder / name, expected, verify)
    with agreed(transport):
        copied = staging.opened(data, folder, hosted[transport.rank])
    return copied
