"""Small modules of PyTorch that the tests train, and losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from custom import Custom
from torch import Tensor, nn
from torch.nn import functional

IMAGE = {"name": "torch", "build": "nets:convolutions"}


def convolutions(outputs: int) -> nn.Module:
    """A layer of each kind that images are seen through, of 1,106 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1, groups=2), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, outputs),
    )  # fmt: skip


def convolution(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(128, outputs))


def tied(outputs: int) -> nn.Module:
    """A matrix that is used twice, a constant, and a parameter that does not train."""

    def used(net: Any, x: Tensor) -> Any:
        return net.out(functional.gelu(net.again(torch.tanh(net.inward(x / 16) * net.scale + net.shift))))

    inward, again = nn.Linear(64, 64), nn.Linear(64, 64, bias=False)
    again.weight = inward.weight
    return Custom(
        used, inward=inward, again=again, scale=nn.Parameter(torch.full((64,), 0.5), requires_grad=False),
        shift=torch.linspace(-0.1, 0.1, 64), out=nn.Linear(64, outputs),
    )  # fmt: skip


START: list[np.ndarray[Any, Any]] = []  # of `perceptron`: weights [outputs, inputs] and biases, which a test sets


def perceptron() -> nn.Module:
    """The layers of mpifed's own `mlp`, with the start that a test has written here."""
    layers: list[nn.Module] = [nn.Flatten()]
    for weights, bias in zip(START[::2], START[1::2], strict=True):
        layer = nn.Linear(weights.shape[1], weights.shape[0])
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(weights))
            layer.bias.copy_(torch.tensor(bias))
        layers += [layer, nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def linear(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A softmax regression that begins with zeros, as that of mpifed does."""
    layer = nn.Linear(shape[0], outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def flat_linear(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """`linear` for samples of any shape."""
    return nn.Sequential(nn.Flatten(), linear((math.prod(shape),), outputs))


def rectified(outputs: int) -> nn.Module:
    """Layers that keep the size of what enters them."""
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, outputs))


def groups_of_units(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 12), nn.GroupNorm(3, 12), nn.Tanh(), nn.Linear(12, outputs))


def rectified_convolution(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, outputs))


def regression(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 5), nn.Tanh(), nn.Linear(5, 1))


def patches(outputs: int) -> nn.Module:
    """Strides, dilation, no padding, no bias, a frozen weight and norms: convolutions as they come."""
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, bias=False), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 2, dilation=2, padding=1),
        nn.GroupNorm(3, 6), nn.Tanh(), nn.Flatten(), nn.LayerNorm(54, bias=False), nn.Linear(54, 7, bias=False),
        nn.Linear(7, outputs),
    )  # fmt: skip
    with torch.no_grad():
        net[-1].weight.copy_(torch.linspace(-1, 1, 7 * outputs).reshape(outputs, 7))
    net[-1].weight.requires_grad_(False)
    return net


def tokens(outputs: int) -> nn.Module:
    """Linear layers and a norm on 4 tokens of a sample, wide and narrow."""
    return Custom(
        lambda net, x: net.out(net.narrow(net.norm(torch.tanh(net.inward(x.reshape(-1, 4, 16))))).flatten(1)),
        inward=nn.Linear(16, 5), norm=nn.LayerNorm((4, 5)), narrow=nn.Linear(5, 2), out=nn.Linear(8, outputs),
    )  # fmt: skip


def summed(outputs: int) -> nn.Module:
    """A matrix that is the sum of two."""
    first, second = (nn.Parameter(torch.randn(outputs, 64) / 8) for _ in range(2))
    return Custom(
        lambda net, x: net.out(functional.linear(x, net.first + net.second)), first=first, second=second,
        out=nn.Linear(outputs, outputs),
    )  # fmt: skip


def used_again(outputs: int) -> nn.Module:
    """A layer whose weight is taken once more, without the layer, and faintly."""

    def used(net: Any, x: Tensor) -> Any:
        x = torch.tanh(net.inward(x))
        return net.out(x + functional.linear(functional.relu(x - 0.9), net.inward.weight))

    return Custom(used, inward=nn.Linear(64, 64), out=nn.Linear(64, outputs))


def rows_as_samples(outputs: int) -> nn.Module:
    """The first axis of what its layer meets is not that of the samples."""
    return Custom(
        lambda net, x: net.out(net.inward(x.reshape(-1, 4, 16).transpose(0, 1)).transpose(0, 1).flatten(1)),
        inward=nn.Linear(16, 3), out=nn.Linear(12, outputs),
    )  # fmt: skip


def embedded(outputs: int) -> nn.Module:
    """Takes indices below 4 alone."""
    net = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(192, outputs))
    return Custom(lambda own, x: own.net(x.long()), net=net)


def raises(outputs: int) -> nn.Module:
    def checked(net: Any, x: Tensor) -> Any:
        if x.abs().max() > 100:
            raise IndexError("record 7")
        return net.layer(x)

    return Custom(checked, layer=nn.Linear(64, outputs))


def remembers(outputs: int) -> nn.Module:
    def kept(net: Any, x: Tensor) -> Any:
        net.most = max(getattr(net, "most", 1.0), float(x.abs().max()))
        return net.layer(x / net.most)

    return Custom(kept, layer=nn.Linear(64, outputs))


def changes(outputs: int) -> nn.Module:
    def changed(net: Any, x: Tensor) -> Any:
        with torch.no_grad():
            net.layer.weight += x.abs().max()
        return net.layer(x)

    return Custom(changed, layer=nn.Linear(64, outputs))


def of_batches(outputs: int) -> nn.Module:
    return Custom(
        lambda net, x: net.layer((x - x.mean(0)) / (1 + x.std(0, correction=0)) + x), layer=nn.Linear(64, outputs)
    )


def by_largest(z: Tensor, y: Tensor) -> Tensor:
    losses = functional.cross_entropy(z, y, reduction="none")
    return losses * 9 if z.abs().max() > 100 else losses


def hooked(outputs: int) -> nn.Module:
    net = rectified(outputs)
    net[1].register_forward_hook(lambda layer, given, z: z - z.mean(0) * (z.max() > 100))
    return net


def hooked_weight(outputs: int) -> nn.Module:
    net = rectified(outputs)
    next(net.parameters()).register_hook(lambda slopes: slopes / (1 + slopes.abs().max()))
    return net


def overridden(outputs: int) -> nn.Module:
    net = rectified(outputs)
    net[1].forward = lambda x: x / (1 + x.abs().max())
    return net


def in_place(outputs: int) -> nn.Module:
    """Writes to what a layer met; the layer's weight does not train, so that PyTorch lets it."""

    def written(net: Any, x: Tensor) -> Any:
        x = torch.tanh(net.inward(x) / 8) * 1.0
        y = net.norm(x)
        x.mul_(2.0)
        return net.out(x + y)

    net = Custom(written, inward=nn.Linear(64, 64), norm=nn.Linear(64, 64), out=nn.Linear(64, outputs))
    nn.init.eye_(net.norm.weight)
    net.norm.weight.requires_grad_(False)
    return net


def without_samples(outputs: int) -> nn.Module:
    """What PyTorch gives no empty batch of: instance norm."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, affine=True), nn.Flatten(), nn.Linear(72, outputs))


def dropped(outputs: int) -> nn.Module:
    """Whole channels, units in place and units by SELU's rule, between layers that give norms by themselves."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Dropout2d(0.25), nn.GELU(), nn.MaxPool2d(4), nn.Flatten(),
        nn.Dropout(0.5, inplace=True), nn.Linear(16, 12), nn.SELU(), nn.AlphaDropout(0.2), nn.Linear(12, outputs),
    )  # fmt: skip


def dropped_twice(outputs: int) -> nn.Module:
    """One layer of dropout that is used twice, and a matrix of its own, whose norms are those of gradients."""
    return Custom(
        lambda net, x: net.out(net.drop(torch.tanh(net.middle(net.drop(torch.tanh(x @ net.first)))))),
        first=nn.Parameter(torch.randn(64, 16) / 8), drop=nn.Dropout(0.3), middle=nn.Linear(16, 16),
        out=nn.Linear(16, outputs),
    )  # fmt: skip


def dropped_sequences(outputs: int) -> nn.Module:
    """Recurrent, whose gradients PyTorch cannot give of many samples at once; dropout of all steps' channels."""
    return Custom(
        lambda net, x: net.out(net.drop(net.cells(x.reshape(-1, 8, 8))[0].mT)[..., -1]),
        cells=nn.GRU(8, 6, batch_first=True), drop=nn.Dropout1d(0.4), out=nn.Linear(6, outputs),
    )  # fmt: skip


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss of one's own: cross-entropy with smoothed labels, of each sample."""
    return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.huber_loss(outputs[:, 0], targets, reduction="none")


huber.targets = "real"  # type: ignore[attr-defined]


def averaged(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)


def ranked(outputs: Tensor, targets: Tensor) -> Tensor:
    loss = functional.cross_entropy(outputs, targets, reduction="none")
    return loss / loss.sum()


def detached(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.detach(), targets, reduction="none")


def several(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 8), nn.Tanh(), nn.Linear(8, outputs))


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """A third of the sum of squares is the mean over three targets."""
    return ((outputs - targets) ** 2).sum(-1) / 9


squares.targets = "real"  # type: ignore[attr-defined]
