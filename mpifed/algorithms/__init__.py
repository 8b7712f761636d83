"""One file per family of algorithms, and the table of their names."""

from mpifed.algorithms.fedavg import FedAvg, FedProx
from mpifed.algorithms.fedpdm import FedPDM
from mpifed.algorithms.scaffold import Scaffold
from mpifed.algorithms.ssca_horizontal import SSCAHorizontal
from mpifed.algorithms.ssca_vertical import SSCAVertical
from mpifed.algorithms.vertical_sgd import VerticalSGD

ALGORITHMS: dict[str, type] = {
    "ssca-horizontal": SSCAHorizontal,
    "ssca-vertical": SSCAVertical,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fedpdm": FedPDM,
    "vertical-sgd": VerticalSGD,
}
