"""`[data] stage`: the shards that a node hosts are copied to its local disk, and read from there."""

from __future__ import annotations

from mpifed.comm.placement import Placement
from mpifed.comm.transport import Transport
from mpifed.run.tables import DataTable
from mpifed.run.together import together
from mpifed.shards import layout, staging
from mpifed.shards.store import FederatedDataset


def staged(table: DataTable, data: FederatedDataset, placement: Placement, transport: Transport) -> FederatedDataset:
    """The data as this rank reads them: from their folder, or from the copy on its node. Collective.

    Each file is copied by a single rank of the node: a shard file by the first that hosts one of its clients,
    `federation.h5` by the node's first rank. The bits are the same.

    Raises
    ------
    UsageError, DataError
        on every rank, when a node has no such folder, no room in it, or a file is damaged.
    """
    stage = table.stage
    if stage is None:
        return data
    sums = together(transport, lambda: staging.checksum_of(data) if transport.rank == 0 else "")
    checksum: str = transport.share(sums)
    folder = together(transport, lambda: staging.folder_of(stage, checksum))
    of_node = [rank for rank, node in enumerate(transport.nodes) if node == transport.nodes[transport.rank]]
    hosted = {rank: [client for clients in placement.of(rank) for client in clients] for rank in of_node}
    files = {layout.FEDERATION: (of_node[0], checksum)}  # who copies it, and its SHA-256
    for rank in of_node:
        for name, expected in staging.files_of(data, hosted[rank]).items():
            files.setdefault(name, (rank, expected))
    is_first = transport.rank == of_node[0]
    together(transport, lambda: staging.make_ready(data, folder, files) if is_first else None)

    def copy() -> None:
        for name, (rank, expected) in files.items():
            if rank == transport.rank:
                staging.copy(data.path / name, folder / name, expected, table.verify)

    together(transport, copy)
    return together(transport, lambda: staging.opened(data, folder, hosted[transport.rank]))
