"""Modules as people write them who have never read what mpifed asks for: some are right, the others are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from custom import Custom, of_one
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

torch.set_default_dtype(torch.float64)  # as scripts begin; for nobody else
torch.set_num_threads(2)


def on_images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *layers)


def two_layers(inner: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(inner or nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def sequences(cells: nn.Module, width: int) -> nn.Module:
    return Custom(
        lambda net, x: net.out(net.cells(x.reshape(-1, 8, 8))[0][:, -1]), cells=cells, out=nn.Linear(width, 10)
    )


def transformer(dropout: float = 0.0, batch_first: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)
    return Custom(lambda net, x: net.out(net.layer(x.reshape(-1, 8, 8)).mean(1)), layer=layer, out=nn.Linear(8, 10))


def dropping_sequences() -> nn.Module:
    """Which draw between the layers of cells, and without a layer of dropout."""
    return Custom(
        lambda net, x: net.out(dropout(net.cells(x.reshape(-1, 8, 8))[0][:, -1], 0.2, net.training)),
        cells=nn.LSTM(8, 4, num_layers=2, dropout=0.5, batch_first=True), out=nn.Linear(4, 10),
    )  # fmt: skip


def with_depth() -> nn.Module:
    """Leaves its inner layer out for some samples, while it trains."""

    def some(net: Any, x: Tensor) -> Any:
        kept = torch.rand(len(x), 1, dtype=x.dtype) < 0.5 if net.training else 0.5
        return net.out(x + kept * torch.tanh(net.inner(x)))

    return Custom(some, inner=nn.Linear(64, 64), out=nn.Linear(64, 10))


def embedded(index: Callable[[Tensor], Tensor], **settings: Any) -> nn.Module:
    return Custom(
        lambda net, x: net.out(net.table(index(x)).flatten(1)), table=nn.Embedding(17, 4, **settings),
        out=nn.Linear(256, 10),
    )  # fmt: skip


def frozen_convolution() -> nn.Module:
    layer = nn.Conv2d(1, 4, 3).requires_grad_(False)
    nn.init.constant_(layer.weight, 0.1)
    nn.init.constant_(layer.bias, 0.1)
    return on_images(layer, nn.Flatten(), nn.Linear(144, 10))


def awkward_names() -> nn.Module:
    net = Custom(
        lambda net, x: getattr(net, 'größe, "1"')(torch.tanh(net.head(x @ net.first) @ net.name) @ net.count),
        first=nn.Parameter(torch.randn(64, 8) / 8), head=nn.Linear(8, 8), name=nn.Parameter(torch.randn(8, 8)),
        count=nn.Parameter(torch.randn(8, 8)),
    )  # fmt: skip
    net.add_module('größe, "1"', nn.Linear(8, 10))
    return net


def without_gradients() -> nn.Module:
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(False)
    return two_layers()


def as_it_was() -> nn.Module:
    return Custom(
        lambda net, x: net.out(checkpoint(net.inner, x, use_reentrant=False)), inner=nn.Linear(64, 16),
        out=nn.Linear(16, 10),
    )  # fmt: skip


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions of PyTorch deprecate it
        module: nn.Module = torch.jit.script(two_layers())
    return module


RIGHT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: sequences(nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True), 12),
    "gru": lambda: sequences(nn.GRU(8, 6, batch_first=True), 6),
    "transformer": transformer,
    "dropping_transformer": lambda: transformer(0.1),
    "dropping_sequences": dropping_sequences,
    "stochastic_depth": with_depth,
    "weight_norm": lambda: two_layers(parametrizations.weight_norm(nn.Linear(64, 16))),
    "lazy": lambda: on_images(nn.LazyConv2d(4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(10)),
    "wide": lambda: Custom(
        lambda net, x: net.layer(x - net.shift), layer=nn.Linear(64, 10), shift=torch.linspace(0, 1, 64)
    ).double(),
    "indices": lambda: embedded(lambda x: x.long()),
    "frozen": frozen_convolution,
    "names": awkward_names,
    "no_gradients": without_gradients,
    "scripted": scripted,
    "checkpointed": as_it_was,
    "seeding_itself": lambda: [torch.manual_seed(0), two_layers()][1],
}


def counting(net: Any, x: Tensor) -> Any:
    """Remembers in an attribute how often it was called."""
    net.calls = getattr(net, "calls", 0) + 1
    return net.layer(x) * (1 + 0.1 * net.calls)


def remembering(net: Any, x: Tensor) -> Any:
    """Remembers in a buffer the mean that it has seen."""
    with torch.no_grad():
        net.seen += x.mean(0)
    return net.layer(x)


def drawn() -> nn.Module:
    net = two_layers()
    net[0].weight = nn.Parameter(torch.randn(16, 64), requires_grad=False)
    return net


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {  # by name: what is built, what the message says
    "batch_norm": (lambda: nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10)),
                   r'"1.running_mean" changes when samples pass.* mpifed.models.replace_batch_norm\(net\)'),
    "batch_only": (lambda: nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10, track_running_stats=False)),
                   r"depends on the other samples of the batch.* mpifed.models.replace_batch_norm\(net\)"),
    "mixed": (of_one(lambda net, x: net.layer(x + x[torch.randperm(len(x))] * net.training)),
              "depends on the other samples of the batch"),
    "sequence_first": (lambda: transformer(batch_first=False), "depends on the other samples.*batch_first=True"),
    "remembering": (lambda: of_one(remembering, seen=torch.zeros(64))(), '"seen" changes when samples pass'),
    "counting": (of_one(counting), "gives other outputs for the same samples after the same seed"),
    "dropped_always": (of_one(lambda net, x: net.layer(dropout(x))), r"in eval\(\) after another.* self.training"),
    "frozen_all": (lambda: nn.Sequential(nn.Flatten()), "has no parameters that train"),
    "spectral": (lambda: two_layers(parametrizations.spectral_norm(nn.Linear(64, 16))),
                 r'weight.0._u" is another when the module is built again'),
    "drawn": (drawn, '"0.weight" is another when the module is built again'),
    "wide": (lambda: nn.Linear(64, 7), r"gives \[3, 7\], .*\[3, 10\] of .* \(tried with samples of \[3, 64\], "),
    "images": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)),
               r"give the \[model\] shape that it takes.* \(tried with samples of \[3, 64\]"),
    "tuple": (of_one(lambda net, x: (net.layer(x), x)), r"gives a tuple; \[3, 10\] .* is expected"),
    "in_place": (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(64, 10)), "changes its samples in place"),
    "item": (of_one(lambda net, x: net.layer(x) * net.scale[0].item(), scale=nn.Parameter(torch.ones(1))),
             'no dense derivative by parameter "scale"; leave out detach'),
    "detached": (of_one(lambda net, x: net.layer(x).detach()), 'by parameter "layer.weight"; leave out detach'),
    "unused": (of_one(lambda net, x: net.layer(x), more=nn.Parameter(torch.ones(1))), "requires_grad=False of what"),
    "sparse": (lambda: embedded(lambda x: x.long(), sparse=True), 'by parameter "table.weight".*set sparse=False'),
    "single_number": (of_one(lambda net, x: net.layer(x) * net.scale, scale=nn.Parameter(torch.tensor(1.0))),
                      r'parameter "scale": give it an axis, as torch.ones\(1\)'),
    "list": (lambda: with_list([nn.Linear(64, 64)]), r"dtype.*tried with samples of \[3, 64\], torch.float64"),
    "floats_as_indices": (lambda: embedded(lambda x: x), r"and indices by x.long\(\)"),
    "slash": (lambda: nn.Sequential(nn.ModuleDict({"a/b": nn.Linear(64, 10)})["a/b"]).append(slashed()), "without"),
    "argument": (lambda classes: nn.Linear(64, classes), "missing 1 required .*it is given shape = .64,. and outputs"),
    "failing": (lambda: 1 / 0, "ZeroDivisionError: division by zero; correct the function"),
}  # fmt: skip


def with_list(layers: list[nn.Module]) -> nn.Module:
    """Layers that PyTorch does not see."""
    net = Custom(lambda net, x: net.out(net.layers[0](x)), out=nn.Linear(64, 10))
    net.layers = layers  # type: ignore[assignment]
    return net


def slashed() -> nn.Module:
    net = Custom(lambda net, x: x)
    net.add_module("c/d", nn.Linear(10, 10))
    return net


already_built = nn.Linear(64, 10)


def __getattr__(name: str) -> Any:
    """`right_lstm`, `refused_list` and so on, as jobs name them."""
    kind, _, rest = name.partition("_")
    if kind == "right" and rest in RIGHT:
        return RIGHT[rest]
    if kind == "refused" and rest in REFUSED:
        return REFUSED[rest][0]
    raise AttributeError(name)
