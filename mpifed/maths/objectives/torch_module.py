"""The module of PyTorch through which samples pass, and how arrays become its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.record import Array, NamedArrays, namespace
from mpifed.core.row_seeds import COLUMNS
from mpifed.maths.objectives.torch_build import library
from mpifed.maths.objectives.torch_dropout import masks_of
from mpifed.maths.objectives.torch_samples import TorchSamples, constants

if TYPE_CHECKING:
    from torch import Tensor, nn

PASS_BYTES = 2**27  # of what a pass keeps for the way back
_MOST_SAMPLES = 1024  # of a pass


class Held:
    """The module through which samples pass, and the parameters that it has now."""

    def __init__(self, net: nn.Module, shape: tuple[int, ...]) -> None:
        self.net, self.shape, self.masks = net.train(), shape, masks_of(net, shape)
        pairs = list(trained(net))
        self.names, self.tensors = [name for name, _ in pairs], [tensor for _, tensor in pairs]
        self.bound, self.built = 0, {name: tensor.detach() for name, tensor in constants(net).items()}
        net.float()
        self.dtype, self.device = self.tensors[0].dtype, self.tensors[0].device
        kept = max(1, self._kept())
        self.samples = max(1, min(_MOST_SAMPLES, PASS_BYTES // kept))
        size = 8 * sum(tensor.numel() for tensor in self.tensors)
        at_once = max(1, min(self.samples, PASS_BYTES // (size + 2 * kept)))  # with a gradient of each sample
        self.of_samples = TorchSamples(net, self.tensors, shape, at_once, PASS_BYTES)

    def bind(self, parameters: NamedArrays, gradients: Sequence[Array] = ()) -> int:
        """Give the module these parameters, without a copy, and the memory of their gradients, which become zeros.

        Returns the number of this binding.
        """
        for tensor, leaf in zip(self.tensors, parameters, strict=True):
            tensor.data = as_tensor(leaf)
        if (self.tensors[0].dtype, self.tensors[0].device) != (self.dtype, self.device):
            self._convert()
        for tensor, leaf in zip(self.tensors, gradients, strict=False):
            leaf[...] = 0
            tensor.grad = as_tensor(leaf)
        self.bound += 1
        return self.bound

    def samples_of(self, X: Array) -> Tensor:
        """Samples [s, p] in the shape that the module takes, in the dtype of the parameters; with seeds as they are."""
        samples = as_tensor(X).to(self.tensors[0].dtype)
        if self.masks is not None and self.masks.has_seeds(samples):
            return samples
        return samples.reshape(len(X), *self.shape)

    def gradient(self, like: NamedArrays, of: Tensor, along: Tensor) -> NamedArrays:
        """The derivative of the sum of `of` times `along` by the parameters, a record of the class of `like`.

        Its leaves share no memory with each other or with `along`: the slope of a sum is that of both terms, and
        PyTorch gives it as one tensor.
        """
        along = along.to(of.dtype)
        # the graph stays, since several functions of one model share a pass
        slopes = library().autograd.grad(of, self.tensors, along, retain_graph=True, materialize_grads=True)
        taken = {along.data_ptr(), *[slope.data_ptr() for slope in slopes]}
        if len(taken) <= len(slopes):
            slopes = [slope.clone() for slope in slopes]
        return type(like)(*[as_array(slope.contiguous(), like[0]) for slope in slopes])

    def _convert(self) -> None:
        """Constants in the dtype of the parameters, and where these are; from the numbers as they were built."""
        self.dtype, self.device = self.tensors[0].dtype, self.tensors[0].device
        for name, tensor in constants(self.net).items():
            number = self.built[name]
            tensor.data = number.to(self.device, self.dtype if number.is_floating_point() else None)

    def _kept(self) -> int:
        """Bytes that the way back keeps of one sample, and its output."""
        torch, sizes = library(), list[int]()
        own = {tensor.data_ptr() for tensor in self.tensors}

        def packed(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in own:
                sizes.append(tensor.numel() * tensor.element_size())
            return tensor

        shape = self.shape if self.masks is None else (self.masks.features + COLUMNS,)
        with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
            self.net(torch.zeros(1, *shape, dtype=torch.float32))
        return sum(sizes)


def trained(net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor) for name, tensor in net.named_parameters() if tensor.requires_grad)


def as_tensor(array: Array) -> Tensor:
    """The same memory as a tensor."""
    torch = library()
    tensor: Tensor = torch.from_numpy(np.asarray(array)) if namespace(array) is np else torch.from_dlpack(array)
    return tensor


def as_array(tensor: Tensor, like: Array) -> Array:
    """The same memory as an array, of NumPy or of CuPy as `like`."""
    array: Array = tensor.numpy() if namespace(like) is np else namespace(like).from_dlpack(tensor)
    return array
