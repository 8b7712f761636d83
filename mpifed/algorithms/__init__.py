"""One file per family of algorithms, and the table of their names."""

from mpifed.algorithms.fedavg import FedAvg
from mpifed.algorithms.ssca_horizontal import SSCAHorizontal

ALGORITHMS: dict[str, type] = {"ssca-horizontal": SSCAHorizontal, "fedavg": FedAvg}
