"""Networks of PyTorch: any `torch.nn.Module` whose loss is a mean over samples.

The module's parameters are those of the model, under the names of its `state_dict`. Buffers, and parameters that need
no gradient, are constants: those of a module that is built with seed 0, alike on every rank. A pass in training is in
`train()`, after PyTorch's generator was seeded by its key, any other in `eval()`. PyTorch computes in one thread, with
deterministic algorithms, so that a client's numbers depend on its own parameters, samples and key alone; when a pass is
over, PyTorch is set as it was found. Its own objects are `Any` here, since this file is read without it.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator

from mpifed.contract import own_module, own_object
from mpifed.core.errors import UsageError
from mpifed.core.record import ABSENT, Array, namespace
from mpifed.data.block import of_vectors
from mpifed.maths.losses import LOSSES, SampleLoss
from mpifed.maths.objectives.network import NeuralNetwork, Pullback
from mpifed.maths.objectives.torch_samples import by_layers, drawn_samples, layers_give
from mpifed.maths.parameters import Head, NamedArrays, Slope

if TYPE_CHECKING:
    from torch import Tensor, nn

PASS_BYTES = 2**27  # of what a pass keeps for the way back
_MOST_SAMPLES = 1024  # of a pass
_TRIED = 3  # samples
_LOCK = RLock()  # PyTorch's settings and its generator are the process's


@dataclass(frozen=True)
class TorchNetwork(NeuralNetwork):
    """A `torch.nn.Module` that a function of yours builds: needs `pip install mpifed[torch]`."""

    build: str
    """"module:function": gives the `torch.nn.Module`, from no arguments, or from those of `shape` and `outputs` that it
    has. Its initial parameters are drawn by PyTorch's generator, which the job's seed sets."""
    shape: tuple[int, ...] | None = None
    """Shape of a sample as the module takes it, such as [1, 28, 28]; where absent that of the data, or [features]."""
    loss_name: str = field(default="cross-entropy", metadata={"key": "loss"})
    """"cross-entropy" of classes; "binary-cross-entropy" of several labels of a sample, 0 or 1; "mse", (z - y)^2 / 2,
    of real targets; or "module:function", which gives the loss of each sample [s] from the outputs [s, L] and the
    targets, [s] or, of several, [s, L], both tensors."""

    @property
    def sample_loss(self) -> SampleLoss:
        """By what targets are; a loss of one's own has an attribute `targets`: "classes", "labels" or "real"."""
        name, kinds = self.loss_name, {"real": "mse", "labels": "binary-cross-entropy"}
        if self._own_loss is not None:
            name = kinds.get(getattr(self._own_loss, "targets", "classes"), "cross-entropy")
        return LOSSES.get(name, LOSSES["cross-entropy"])  # `check` refuses others

    @property
    def nonnegative(self) -> bool:
        return self._own_loss is None

    def of_shape(self, shape: tuple[int, ...] | None) -> TorchNetwork:
        return self if self.shape is not None or shape is None else replace(self, shape=shape)

    def check(self, features: int, outputs: int) -> list[str]:
        if self.loss_name not in LOSSES and own_module(self.loss_name) is None:
            known = ", ".join(f'"{name}"' for name in LOSSES)
            return [f'[model] loss = "{self.loss_name}": give {known}, or your own as "module:function"']
        shape = self.shape or (features,)
        if math.prod(shape) != features:
            return [
                f"[model] shape = {list(shape)}: is of {math.prod(shape)} numbers, and a sample of the data has "
                f"{features}; give the shape of the data"
            ]
        with _settled():
            nets = [built(self.build, seed, shape, outputs) for seed in (0, 0, 1)]
            wrong = _wrong_start(*nets) or _wrong_passes(nets[0], shape, outputs)
            return [f'[model] build = "{self.build}": {wrong}'] if wrong else self._wrong_loss(outputs)

    def undrawn_parameter(self, features: int, outputs: int) -> str:
        shape = self.shape or (features,)
        nets = [dict(built(self.build, seed, shape, outputs).named_parameters()) for seed in (0, 1)]
        fixed = (name for name, tensor in nets[0].items() if tensor.equal(nets[1][name]) and len(tensor.unique()) > 1)
        return next(fixed, "")

    def initial(self, features: int, outputs: int, rng: Generator) -> dict[str, Array]:
        shape = self.shape or (features,)
        with _settled():
            net = built(self.build, int(rng.integers(2**62)), shape, outputs)
            if "_held" not in self.__dict__:
                build = partial(built, self.build, 0, shape, outputs)
                self.__dict__.update(_build=build, _held=Held(build(), shape))
        return {name: tensor.detach().numpy().copy() for name, tensor in _trained(net).items()}

    @property
    def samples_at_once(self) -> int:
        return self._held.samples

    def outputs(
        self, parameters: NamedArrays, X: Array, gradient: bool, key: int | None = None
    ) -> tuple[Array, Pullback]:
        held = self._held
        with _settled() as torch:
            held.bind(parameters)
            with torch.set_grad_enabled(gradient):
                z = held.passed(X, key)

        def back(slopes: Array) -> NamedArrays:
            with _settled() as torch:
                held.bind(parameters)  # to which the graph refers, and another pass may have bound others since
                # the graph stays, since several functions of one model share a pass
                each = torch.autograd.grad(
                    z, held.tensors, _as_tensor(slopes).to(z.dtype), retain_graph=True, materialize_grads=True
                )
                # of a sum PyTorch gives both terms, and the slopes, the same memory
                apart = [_as_array(slope.clone(memory_format=torch.contiguous_format), X) for slope in each]
            return type(parameters)(*apart)

        return _as_array(z.detach(), X), back

    def add_gradient(
        self, parameters: NamedArrays, X: Array, y: Array, weights: Array, out: NamedArrays, key: int | None
    ) -> None:
        """By a single way back: PyTorch itself adds to the leaves of `out`."""
        held = self._held
        with _settled():
            held.bind(parameters, out)
            losses = self._losses(held.passed(X, key), _targets(y))
            losses.backward(_as_tensor(weights).to(losses.dtype), inputs=held.tensors)

    def loss(self, head: Head, scores: Array, y: Array) -> Array:
        with _settled() as torch, torch.no_grad():
            losses: Array = _as_array(self._of_outputs(scores, y)[1], scores).reshape(y.shape)
        return losses

    def slope(self, head: Head, scores: Array, y: Array, weights: Array) -> Slope:
        with _settled() as torch:
            z, losses = self._of_outputs(scores, y)
            (slopes,) = torch.autograd.grad(losses, z, _as_tensor(weights.reshape(-1)).to(losses.dtype))
        return Slope(ABSENT, _as_array(slopes, scores).reshape(scores.shape))

    @property
    def passes_at_once(self) -> bool:
        """Whether no code but PyTorch's sees samples, which raises for no numbers, and layers give each's gradient."""
        return self._own_loss is None and self._held.samples_by_layers > 0

    def sample_gradients(
        self, parameters: NamedArrays, X: Array, y: Array, factors_of: Callable[[Array, int], Array], key: int | None
    ) -> Iterator[NamedArrays]:
        """Sums of the gradients of some samples at a time, times factors, where samples pass at once.

        Parameters
        ----------
        factors_of : [k] of k samples, from their squared norms and the number of the first; what has the factor 0 is
            left out, also where it is not finite
        """
        held, size = self._held, self._held.samples_by_layers
        for start in range(0, len(X), size):
            at = slice(start, start + size)
            with _settled():
                held.bind(parameters)
                samples = held.samples_of(X[at], None if key is None else key + start)
                found = by_layers(held.net, held.tensors, samples, partial(self._losses, y=_targets(y[at])))
                factors = _as_tensor(factors_of(_as_array(found.squares(), X), start))
                yield type(parameters)(*[_as_array(leaf, X) for leaf in found.weighted(factors)])

    def alone(self) -> TorchNetwork:
        other = replace(self)
        with _settled():
            held = Held(copy.deepcopy(self._unmet), self._held.shape, self._held.kept)
        other.__dict__.update(_shapes=self.shapes, _held=held, _own_loss=self._own_loss)
        return other

    @cached_property
    def _unmet(self) -> nn.Module:
        """A module through which nothing passes."""
        net: nn.Module = self.__dict__["_build"]()
        return net

    @cached_property
    def _own_loss(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        if own_module(self.loss_name) is None:
            return None
        with _settled():
            loss: Callable[[Tensor, Tensor], Tensor] = own_object(self.loss_name, f'[model] loss = "{self.loss_name}"')
        return loss

    def _of_outputs(self, scores: Array, y: Array) -> tuple[Tensor, Tensor]:
        """(outputs [m, L] that take a derivative, losses [m]) of all m samples."""
        z = _as_tensor(scores.reshape(-1, scores.shape[-1])).requires_grad_()
        return z, self._losses(z, _targets(y))

    def _losses(self, z: Tensor, y: Tensor) -> Tensor:
        """[s] the loss of each sample, from outputs [s, L] and targets [s] or, of several reals, [s, L]."""
        if self._own_loss is not None:
            return self._own_loss(z, y.to(z.dtype) if y.is_floating_point() else y.long())
        if self.loss_name == "mse":
            residual = z - y.reshape(z.shape)
            return (residual * residual).mean(-1) / 2
        from torch.nn import functional

        if self.loss_name == "binary-cross-entropy":
            each: Tensor = functional.binary_cross_entropy_with_logits(z, y.to(z.dtype), reduction="none")
            return each.mean(-1)
        losses: Tensor = functional.cross_entropy(z, y.long(), reduction="none")
        return losses

    def _wrong_loss(self, outputs: int) -> list[str]:
        """The error of a loss of one's own that is no loss of each sample."""
        if self._own_loss is None:
            return []
        import torch

        z = torch.linspace(-1, 1, 3 * outputs).reshape(3, outputs).requires_grad_()
        real = torch.linspace(0.1, 0.9, 3 * outputs).reshape((3, outputs) if outputs > 1 else (3,))
        y = torch.arange(3) % outputs if self.classifies else real
        try:
            loss, alone = self._own_loss(z, y), self._own_loss(z[:1], y[:1])
            if loss.shape == (3,) and loss.requires_grad and _close(loss[:1], alone):
                return []
            came = f"gives {_shown(loss)} for 3 samples, with{'' if loss.requires_grad else 'out'} a derivative"
        except Exception as error:  # it is the user's own code
            came = _first_line(error)
        return [
            f'[model] loss = "{self.loss_name}": {came}; from outputs [s, {outputs}] and targets [s] the loss of each '
            "sample, [s], is expected, with a derivative, and of its own alone: their mean is taken here (losses of "
            'PyTorch have reduction="none"; leave out detach())'
        ]

    @cached_property
    def _held(self) -> Held:
        raise AssertionError("start() comes first")


class Held:
    """The module through which samples pass, and the parameters that it has now."""

    def __init__(self, net: nn.Module, shape: tuple[int, ...], kept: int = 0) -> None:
        self.net, self.shape, self.tensors = net.float(), shape, list(_trained(net).values())
        self.kept = kept or max(1, self._kept())
        self.samples = max(1, min(_MOST_SAMPLES, PASS_BYTES // self.kept))

    @cached_property
    def samples_by_layers(self) -> int:
        """How many samples pass at a time with the gradients of each; 0 where layers do not give them."""
        with _settled():
            numbers = layers_give(self.net, self.shape)
        return 0 if numbers is None else max(1, min(self.samples, PASS_BYTES // (8 * numbers + 2 * self.kept)))

    def bind(self, parameters: NamedArrays, gradients: Sequence[Array] = ()) -> None:
        """Give the module these parameters, without a copy, and the memory to which their gradients are added."""
        before = self.tensors[0].dtype, self.tensors[0].device
        for tensor, leaf in zip(self.tensors, parameters, strict=True):
            tensor.data = _as_tensor(leaf)
        for tensor, leaf in zip(self.tensors, gradients, strict=False):
            tensor.grad = _as_tensor(leaf)
        if before != (self.tensors[0].dtype, self.tensors[0].device):
            self.net.to(self.tensors[0])  # what does not train follows

    def samples_of(self, X: Array, key: int | None) -> Tensor:
        """Samples [s, p] as the module takes them, which is ready for their pass: in training by a key."""
        if self.net.training != (key is not None):
            self.net.train(key is not None)
        for generator in _generators():
            generator.manual_seed(key or 0)
        return _as_tensor(X).to(self.tensors[0].dtype).reshape(len(X), *self.shape)

    def passed(self, X: Array, key: int | None) -> Tensor:
        """[s, L] the outputs of samples [s, p]."""
        z: Tensor = self.net(self.samples_of(X, key))
        return z

    def _kept(self) -> int:
        """Bytes that the way back keeps of one sample, and its output."""
        import torch

        sizes, own = list[int](), {tensor.data_ptr() for tensor in self.tensors}

        def packed(tensor: Tensor) -> Tensor:
            sizes.append(tensor.nbytes * (tensor.data_ptr() not in own))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
            self.net.train()(torch.zeros(1, *self.shape))
        return sum(sizes)


# --- PyTorch --------------------------------------------------------------------------------------------------------


def _torch() -> Any:  # the module, which mypy does not see where it is not installed
    try:
        import torch
    except ImportError as error:
        raise UsageError('[model] name = "torch": PyTorch is missing; pip install "mpifed[torch]"') from error
    return torch


def _generators() -> list[Any]:
    """PyTorch's generators of random numbers, of the devices that are in use."""
    import torch

    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]


@cache
def _settings() -> list[tuple[Callable[[], object], Callable[[Any], object], object]]:
    """What decides bits: how it is read and set, and its value."""
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    of_gpus = [
        (cudnn, "benchmark", False),
        *((each, "fp32_precision", "ieee") for each in (matmul, cudnn.conv, cudnn.rnn)),
    ]
    return [
        (torch.get_num_threads, torch.set_num_threads, 1),
        (torch.is_grad_enabled, torch._C._set_grad_enabled, True),
        (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        # the same switch as use_deterministic_algorithms without the compiler, whose import takes 3 s
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 2),
        *(
            (partial(getattr, *each), partial(setattr, *each), wanted)
            for *each, wanted in of_gpus
            if torch.backends.cuda.is_built()
        ),
    ]


@contextmanager
def _settled() -> Iterator[Any]:
    """PyTorch, of one thread of Python at a time, set as bits ask for it; put back as it was found, on every way out.

    What a user's module sets for the whole process holds no longer either.
    """
    torch, settings = _torch(), _settings()
    with _LOCK:
        found = [get() for get, _, _ in settings]
        states = [(generator, generator.get_state()) for generator in _generators()]
        try:
            for (_, put, wanted), before in zip(settings, found, strict=True):
                if before != wanted:
                    put(wanted)
            yield torch
        finally:
            for (get, put, _), before in zip(settings, found, strict=True):
                if get() != before:
                    put(before)
            for generator, state in states:
                generator.set_state(state)


def built(build: str, seed: int, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The module that the user's function "module:function" gives after PyTorch's generator was seeded.

    Raises
    ------
    UsageError
        when there is no such function, it fails, or it gives something else.
    """
    place, torch = f'[model] build = "{build}"', _torch()
    with _settled():  # not as the import has set it
        function = own_object(build, place)
    if isinstance(function, torch.nn.Module):
        raise UsageError(f"{place}: is a module; give a function that builds it, after the job's seed was set")
    with _settled():
        torch.manual_seed(seed)
        try:
            taken = inspect.signature(function).parameters
            any_name = any(one.kind is one.VAR_KEYWORD for one in taken.values())
            offered = {"shape": shape, "outputs": outputs}
            net = function(**{name: value for name, value in offered.items() if any_name or name in taken})
            if not isinstance(net, torch.nn.Module):
                raise TypeError(f"gives a {type(net).__name__}; a torch.nn.Module is expected")
            if any(map(torch.nn.parameter.is_lazy, net.parameters())):
                with torch.no_grad():
                    net.eval()(torch.zeros(1, *shape))
        except Exception as error:  # it is the user's own code
            raise UsageError(
                f"{place}: {type(error).__name__}: {error}; correct the function (it is given shape = {shape} and "
                f"outputs = {outputs}, where it has arguments of these names)"
            ) from error
    module: nn.Module = net
    return module


def _as_tensor(array: Array) -> Tensor:
    """The same memory as a tensor."""
    import torch

    if namespace(array) is not np:
        return torch.from_dlpack(array)  # type: ignore[no-any-return]
    array = np.asarray(array)
    if array.flags.writeable:
        return torch.from_numpy(array)  # type: ignore[no-any-return]
    with warnings.catch_warnings():  # nothing writes to parameters and samples
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)  # type: ignore[no-any-return]


def _as_array(tensor: Tensor, like: Array) -> Array:
    """The same memory as an array, of NumPy or of CuPy as `like`."""
    array: Array = tensor.numpy() if namespace(like) is np else namespace(like).from_dlpack(tensor)
    return array


def _targets(y: Array) -> Tensor:
    """[m] the targets of all m samples; of several reals [m, t]."""
    flat = y.reshape(-1)
    return _as_tensor(namespace(y).ascontiguousarray(of_vectors(flat) if flat.dtype.names else flat))


# --- what is refused ------------------------------------------------------------------------------------------------

_NO_STATE = (
    "mpifed.models.replace_batch_norm(net) puts group norms in the place of batch norms; of other layers take one that "
    "keeps no state"
)


def _wrong_start(net: nn.Module, again: nn.Module, other: nn.Module) -> str:
    """What is wrong with the parameters of a module, built after the same seed `again`, and after another one."""
    import torch

    second, third = dict(_state(again)), dict(_state(other))
    for name, tensor in _state(net):
        same = (second if tensor.requires_grad else third).get(name)
        if same is None or not torch.equal(tensor, same):
            return (
                f'"{name}" is another when the module is built again; draw parameters by PyTorch\'s generator, which '
                "the job's seed sets, and what does not train by none: load it from a file"
            )
        if tensor.requires_grad and (tensor.ndim == 0 or "/" in name):
            return f'parameter "{name}": give it an axis, as torch.ones(1) has one, and a name without "/"'
    return "" if _trained(net) else "has no parameters that train"


def _wrong_passes(net: nn.Module, shape: tuple[int, ...], outputs: int) -> str:
    """The first error that passes of a few samples show, in training, in evaluation and in float64."""
    import torch

    for dtype, training in itertools.product((torch.float32, torch.float64), (True, False)):
        samples, others = (drawn_samples(net, (_TRIED, *shape), seed).to(dtype) for seed in (0, 1))
        try:
            wrong = _error(net.to(dtype).train(training), samples, others, outputs)
        except Exception as error:  # it is the user's own code
            wrong = (
                f"{_first_line(error)}; correct it, or give the [model] shape that it takes, of vectors "
                f"[{math.prod(shape)}]; make tensors of the samples' dtype, x.dtype, and indices by x.long()"
            )
        if wrong:
            return f"{wrong} (tried with samples of {_shown(samples)})"
    return ""


def _error(net: nn.Module, samples: Tensor, others: Tensor, outputs: int) -> str:
    """What passes of these samples show: that the module is no function of each sample, its parameters and a seed."""
    import torch

    def passed(x: Tensor, seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        z: Tensor = net(x)
        return z

    given, before = samples.clone(), {name: tensor.detach().clone() for name, tensor in _state(net)}
    z = passed(given)
    if not isinstance(z, torch.Tensor) or z.shape != (_TRIED, outputs) or z.dtype != samples.dtype:
        return f"gives {_shown(z)}; [{_TRIED}, {outputs}] of the samples' dtype is expected: classes, or targets"
    changed = [name for name, tensor in _state(net) if not torch.equal(before[name], tensor)]
    places = torch.arange(_TRIED).reshape(-1, *[1] * (samples.ndim - 1))
    mixed = [passed(torch.where(places == i, samples, others))[i] for i in range(_TRIED)]
    alone = z[:1] if net.training else passed(samples[:1])
    tensors = _trained(net)
    slopes = torch.autograd.grad(z.sum(), list(tensors.values()), allow_unused=True) if z.requires_grad else tensors
    known = [isinstance(slope, torch.Tensor) and not slope.is_sparse for slope in slopes]  # else None, or names alone
    without = [name for name, well in zip(tensors, known, strict=True) if not well]
    wrong: dict[str, object] = {
        "changes its samples in place; write x = x - 1 for x -= 1, and set inplace=False in the first layers":
            not torch.equal(given, samples),
        f'"{"".join(changed[:1])}" changes when samples pass, and no exchange sends it; {_NO_STATE}': changed,
        "gives other outputs for the same samples after the same seed, or in eval() after another; draw by PyTorch's "
        "generator alone, in training, as functional.dropout(x, p, self.training), and keep no state":
            not torch.equal(z, passed(samples, int(not net.training))),
        "a sample's output depends on the other samples of the batch; losses must be means over samples: "
        f"{_NO_STATE}, and batch_first=True for layers of sequences":
            not (_close(z, torch.stack(mixed)) and _close(z[:1], alone)),
        f'its outputs have no dense derivative by parameter "{"".join(without[:1])}"; leave out detach(), .data, '
        ".item(), .numpy() and torch.no_grad(), set sparse=False, or requires_grad=False of what has no part in them":
            without,
    }  # fmt: skip
    return next((message for message, holds in wrong.items() if holds), "")


def _state(net: nn.Module) -> list[tuple[str, Tensor]]:
    """All buffers and parameters, by name."""
    return [*net.named_buffers(), *net.named_parameters()]


def _trained(net: nn.Module) -> dict[str, Tensor]:
    """The parameters that train, by name."""
    return {name: tensor for name, tensor in net.named_parameters() if tensor.requires_grad}


def _shown(given: object) -> str:
    from torch import Tensor

    return f"{list(given.shape)}, {given.dtype}" if isinstance(given, Tensor) else f"a {type(given).__name__}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _close(one: Tensor, other: Tensor) -> bool:
    from torch import allclose

    return bool(allclose(one, other, rtol=1e-3, atol=1e-5))
