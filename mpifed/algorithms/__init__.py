"""One file per family of algorithms, and the table of their names."""

from mpifed.algorithms.bundle import Bundle
from mpifed.algorithms.cocoa import CoCoA
from mpifed.algorithms.fedavg import FedAvg, FedProx
from mpifed.algorithms.fedpdm import FedPDM
from mpifed.algorithms.hybrid_fedavg import HybridFedAvg
from mpifed.algorithms.hyfdca import HyFDCA
from mpifed.algorithms.hyfem import HyFEM
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
    "hybrid-fedavg": HybridFedAvg,
    "hyfdca": HyFDCA,
    "bundle": Bundle,
    "hyfem": HyFEM,
    "cocoa": CoCoA,
}
