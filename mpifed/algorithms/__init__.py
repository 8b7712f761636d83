"""One file per family of algorithms, and the table of their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from mpifed.algorithms.algorithm import Algorithm

_WHERE = {
    "ssca": "ssca.SSCA",
    "fedavg": "fedavg.FedAvg",
    "alone": "alone.Alone",
    "fedprox": "fedprox.FedProx",
    "fednova": "fednova.FedNova",
    "scaffold": "scaffold.Scaffold",
    "fedexp": "fedexp.FedExP",
    "fedexprox": "fedexp.FedExProx",
    "fedvarp": "fedvarp.FedVARP",
    "fedacg": "fedacg.FedACG",
    "fedcm": "fedcm.FedCM",
    "mime-lite": "fedcm.MimeLite",
    "feddyn": "feddyn.FedDyn",
    "fedadmm": "fedadmm.FedADMM",
    "fedsplit": "fedsplit.FedSplit",
    "fedsam": "fedsam.FedSAM",
    "fedspeed": "fedspeed.FedSpeed",
    "fedbuff": "fedbuff.FedBuff",
    "fedasync": "fedasync.FedAsync",
    "delta-sgd": "delta_sgd.DeltaSGD",
    "fedpdm": "fedpdm.FedPDM",
    "proxskip": "proxskip.ProxSkip",
    "tamuna": "proxskip.TAMUNA",
    "fedlin": "fedlin.FedLin",
    "mime": "mime.MIME",
    "vertical-sgd": "vertical_sgd.VerticalSGD",
    "hybrid-fedavg": "own_columns.HybridFedAvg",
    "hyfdca": "hyfdca.HyFDCA",
    "bundle": "bundle.Bundle",
    "hyfem": "own_columns.HyFEM",
    "cocoa": "cocoa.CoCoA",
}


class _Algorithms(Mapping[str, type[Algorithm]]):
    """Classes by name, each imported when asked for: a run needs one of them."""

    def __getitem__(self, name: str) -> type[Algorithm]:
        module, _, attribute = _WHERE[name].partition(".")
        algorithm: type[Algorithm] = getattr(import_module(f"{__name__}.{module}"), attribute)
        return algorithm

    def __iter__(self) -> Iterator[str]:
        return iter(_WHERE)

    def __len__(self) -> int:
        return len(_WHERE)


ALGORITHMS: Mapping[str, type[Algorithm]] = _Algorithms()
