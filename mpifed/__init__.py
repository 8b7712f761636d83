"""Federated optimization at HPC scale: the server asks, the clients answer, the answers are summed."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from mpifed.comm import gate as _gate

__version__ = "0.1.0"
_gate.watch()

# by name, its module, and after a colon its name there where that is another: imported when it is first asked for, so
# that `import mpifed` is quick and starts no MPI; editors and type checkers read __init__.pyi
_WHERE = {
    "FederatedDataset": "mpifed.python.arrays",
    "Run": "mpifed.python.results", "check": "mpifed.python.calls",
    "load": "mpifed.python.results", "Sweep": "mpifed.python.results", "sweep": "mpifed.python.calls",
    "compare": "mpifed.python.results", "tune": "mpifed.python.calls", "Tuning": "mpifed.results.tuning",
    "plot": "mpifed.python.results", "submit": "mpifed.python.calls",
    "constraint": "mpifed.python.describe", "Torch": "mpifed.python.describe",
    "Alone": "mpifed.algorithms.alone", "FedAvg": "mpifed.algorithms.fedavg", "FedProx": "mpifed.algorithms.fedprox",
    "FedExP": "mpifed.algorithms.fedexp", "FedExProx": "mpifed.algorithms.fedexp",
    "FedVARP": "mpifed.algorithms.fedvarp", "FedACG": "mpifed.algorithms.fedacg",
    "FedNova": "mpifed.algorithms.fednova", "FedCM": "mpifed.algorithms.fedcm", "MimeLite": "mpifed.algorithms.fedcm",
    "Scaffold": "mpifed.algorithms.scaffold", "FedPDM": "mpifed.algorithms.fedpdm",
    "FedDyn": "mpifed.algorithms.feddyn", "FedADMM": "mpifed.algorithms.fedadmm",
    "FedSplit": "mpifed.algorithms.fedsplit", "FedSAM": "mpifed.algorithms.fedsam",
    "FedBuff": "mpifed.algorithms.fedbuff", "FedAsync": "mpifed.algorithms.fedasync",
    "FedSpeed": "mpifed.algorithms.fedspeed", "DeltaSGD": "mpifed.algorithms.delta_sgd",
    "ProxSkip": "mpifed.algorithms.proxskip", "TAMUNA": "mpifed.algorithms.proxskip",
    "FedLin": "mpifed.algorithms.fedlin", "MIME": "mpifed.algorithms.mime",
    "SSCA": "mpifed.algorithms.ssca:SSCAHorizontal",
    "VerticalSGD": "mpifed.algorithms.vertical_sgd", "HybridFedAvg": "mpifed.algorithms.own_columns",
    "HyFEM": "mpifed.algorithms.own_columns", "HyFDCA": "mpifed.algorithms.hyfdca",
    "Bundle": "mpifed.algorithms.bundle", "CoCoA": "mpifed.algorithms.cocoa",
    "SGD": "mpifed.maths.optimizers", "AdamW": "mpifed.maths.adaptive", "ServerSGD": "mpifed.maths.optimizers",
    "ServerAdam": "mpifed.maths.adaptive", "ServerYogi": "mpifed.maths.adaptive",
    "ServerAdagrad": "mpifed.maths.adaptive",
    "PowerDecay": "mpifed.maths.schedules", "StepDecay": "mpifed.maths.schedules",
    "CosineDecay": "mpifed.maths.schedules", "StepSize": "mpifed.maths.schedules",
    "Softmax": "mpifed.maths.objectives", "MLP": "mpifed.maths.objectives", "Logistic": "mpifed.maths.objectives",
    "MultiLabel": "mpifed.maths.objectives", "LeastSquares": "mpifed.maths.objectives",
    "TrueClassLogistic": "mpifed.maths.objectives", "Hinge": "mpifed.maths.objectives",
    "SquaredHinge": "mpifed.maths.objectives",
    "Loss": "mpifed.maths.terms", "ErrorRate": "mpifed.maths.terms", "Norm": "mpifed.maths.terms",
    "L1": "mpifed.maths.regularizers", "GroupL1": "mpifed.maths.regularizers", "Box": "mpifed.maths.regularizers",
    "TopK": "mpifed.maths.compression", "RandK": "mpifed.maths.compression",
    "QSGD": "mpifed.maths.compression", "Natural": "mpifed.maths.compression",
    "Sign": "mpifed.maths.compression",
    "Privacy": "mpifed.maths.privacy.settings",
    "Participation": "mpifed.job.schema", "Aggregation": "mpifed.job.schema",
    "Record": "mpifed.job.schema", "Stop": "mpifed.job.schema", "Compute": "mpifed.job.schema",
    "SimulatedNetwork": "mpifed.job.schema", "Asynchrony": "mpifed.job.schema",
    "Observer": "mpifed.observers", "TensorBoard": "mpifed.observers", "MLflow": "mpifed.observers",
    "WandB": "mpifed.observers",
    "MpifedError": "mpifed.core.errors", "UsageError": "mpifed.core.errors", "DataError": "mpifed.core.errors",
    "NumericalError": "mpifed.core.errors", "Interrupted": "mpifed.core.errors",
    "BudgetSpent": "mpifed.core.errors",
}  # fmt: skip
__all__ = ["__version__", "run", *_WHERE]


class _Package(ModuleType):
    """Its `run` is the function, though a package in it has that name too, which Python's import would set."""

    @property
    def run(self) -> object:
        return import_module("mpifed.python.calls").run

    @run.setter
    def run(self, package: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        meant = import_module("mpifed.text").nearest(name, __all__)
        raise AttributeError(f"module 'mpifed' has no attribute {name!r}{meant}")
    module, _, there = _WHERE[name].partition(":")
    value: object = getattr(import_module(module), there or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
