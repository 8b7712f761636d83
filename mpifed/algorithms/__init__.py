"""One file per family of algorithms, and the table of their names."""

from mpifed.algorithms.fedavg import FedAvg
from mpifed.algorithms.ssca_horizontal import SSCAHorizontal
from mpifed.algorithms.ssca_vertical import SSCAVertical
from mpifed.algorithms.vertical_sgd import VerticalSGD

ALGORITHMS: dict[str, type] = {
    "ssca-horizontal": SSCAHorizontal,
    "ssca-vertical": SSCAVertical,
    "fedavg": FedAvg,
    "vertical-sgd": VerticalSGD,
}
