"""What a PyTorch module must not have to be a sum over samples with the same bits everywhere."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING

from mpifed.maths.objectives.torch_dropout import dropout_kind
from mpifed.maths.objectives.torch_passes import Passes, state, wrong_passes

if TYPE_CHECKING:
    from torch import nn

_FLOATS = ("torch.float32", "torch.float64")


def wrong_module(net: nn.Module, again: nn.Module, other: nn.Module, passes: Passes) -> list[str]:
    """Errors of a module, by the names of its layers; without the place where messages say that it stands.

    Parameters
    ----------
    again, other : built after the same seed, and after another one
    """
    return (
        [*_wrong_layers(net), *_wrong_parameters(net)]
        or _wrong_constants(net, other)
        or _wrong_attributes(net)
        or _wrong_start(net, again)
        or wrong_passes(net, passes)
    )


def _wrong_layers(net: nn.Module) -> list[str]:
    """One message for each kind of error, by the first layer that has it."""
    wrong: dict[str, list[str]] = {}
    for name, layer in net.named_modules():
        if (why := _wrong_layer(layer)) is not None:
            wrong.setdefault(why, []).append(
                f'layer "{name}" ({type(layer).__name__})' if name else type(layer).__name__
            )
    return [f"{layers[0]}{_more(layers)}: {why}" for why, layers in wrong.items()]


def _wrong_layer(layer: nn.Module) -> str | None:
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.instancenorm import _InstanceNorm

    if isinstance(layer, _InstanceNorm):
        remedy = "keeps running statistics; set track_running_stats=False, or take torch.nn.GroupNorm"
        return remedy if layer.track_running_stats else None
    if isinstance(layer, _BatchNorm):
        return (
            "batch normalization makes a sample's output depend on the others of its batch, and keeps statistics that "
            "no client may send; take torch.nn.GroupNorm, or LayerNorm"
        )
    if dropout_kind(layer) == "":
        return "has a forward of its own; take torch.nn.Dropout itself, whose masks are then drawn by the job's seed"
    if isinstance(dropout := getattr(layer, "dropout", None), float) and dropout > 0:
        return (
            f"has dropout={dropout}, drawn from PyTorch's own generator, so that no run could be repeated; set its "
            "`dropout` to 0, and put torch.nn.Dropout between layers, whose masks are drawn by the job's seed"
        )
    if isinstance(layer, nn.DataParallel) or type(layer).__name__ in ("DistributedDataParallel", "OptimizedModule"):
        return "wraps a module; give the module itself, since mpifed spreads the clients, and a compiler decides bits"
    if getattr(layer, "sparse", False) and isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        return "has sparse gradients; set sparse=False"
    return None


def _wrong_attributes(net: nn.Module) -> list[str]:
    """Tensors and layers that PyTorch does not see: they would not train, and no file would hold them."""
    from torch import Tensor, nn

    seen = {id(part) for part in (*net.modules(), *net.parameters(), *net.buffers())}
    for name, layer in net.named_modules():
        for attribute, value in vars(layer).items():
            if attribute in ("_parameters", "_buffers", "_modules"):
                continue
            items = (
                value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
            )
            for item in items:
                where = f'attribute "{name}.{attribute}"' if name else f'attribute "{attribute}"'
                if id(item) in seen:
                    continue
                if isinstance(item, nn.Module):
                    return [
                        f"{where}: PyTorch sees no layers in a list or dict; take torch.nn.ModuleList or ModuleDict"
                    ]
                if isinstance(item, Tensor) and item.is_leaf:
                    return [
                        f"{where}: a tensor that is neither a parameter nor a buffer would not train, and no file "
                        f'would hold it; make it a torch.nn.Parameter, or self.register_buffer("{attribute}", ...)'
                    ]
    return []


def _wrong_parameters(net: nn.Module) -> list[str]:
    parameters = dict(net.named_parameters())
    if not any(tensor.requires_grad for tensor in parameters.values()):
        return ["has no parameter that needs a gradient; there is nothing to train"]
    dtypes = {name: str(tensor.dtype) for name, tensor in parameters.items() if str(tensor.dtype) not in _FLOATS}
    if dtypes:
        name, dtype = next(iter(dtypes.items()))
        return [
            f'parameter "{name}" has dtype {dtype.removeprefix("torch.")}{_more(dtypes)}; float32 is expected, which '
            "[compute] dtype then makes float32 or float64"
        ]
    devices = {name: tensor.device for name, tensor in parameters.items() if tensor.device.type != "cpu"}
    if devices:
        name, device = next(iter(devices.items()))
        return [
            f'parameter "{name}" is on {device}{_more(devices)}; build it on the cpu, since [compute] device says '
            "where it runs"
        ]
    bare = [name for name, tensor in parameters.items() if tensor.requires_grad and tensor.ndim == 0]
    if bare:
        return [f'parameter "{bare[0]}"{_more(bare)} is a single number without axes; give it one: torch.ones(1)']
    slashes = [name for name in parameters if "/" in name]
    return [f'parameter "{slashes[0]}" has a / in its name, which files cannot have; rename it'] if slashes else []


def _more(named: Sized) -> str:
    return f" (and {len(named) - 1} more)" if len(named) > 1 else ""


def _wrong_constants(net: nn.Module, other: nn.Module) -> list[str]:
    """What does not train must be the same whenever the module is built: no file of a run holds it."""
    import torch

    trained = {name for name, tensor in net.named_parameters() if tensor.requires_grad}
    if trained != {name for name, tensor in other.named_parameters() if tensor.requires_grad}:
        return ["has other parameters when it is built again; the function must always give the same layers"]
    others = dict(state(other))
    drawn = [
        name for name, tensor in state(net)
        if name not in trained and not (name in others and torch.equal(tensor, others[name]))
    ]  # fmt: skip
    return [
        f'"{drawn[0]}"{_more(drawn)} does not train, and is another whenever it is built; load it from a file, or let '
        "it train (spectral and orthogonal norms draw such states: take torch.nn.utils.parametrizations.weight_norm)"
    ] if drawn else []  # fmt: skip


def _wrong_start(net: nn.Module, again: nn.Module) -> list[str]:
    import torch

    second = dict(again.named_parameters())
    drawn = [
        name for name, tensor in net.named_parameters() if name not in second or not torch.equal(tensor, second[name])
    ]
    return [
        f'parameter "{drawn[0]}"{_more(drawn)} begins otherwise when it is built again after the same seed; draw it by '
        "PyTorch's generator, which the job's seed sets, and not by that of NumPy or Python"
    ] if drawn else []  # fmt: skip
