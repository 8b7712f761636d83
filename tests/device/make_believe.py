"""A test double of CuPy: arrays of a class of their own, which NumPy cannot use by mistake, and kernels that are run.

Arrays keep NumPy's numbers inside. They are stricter than CuPy's: NumPy's functions do not take them, nothing mixes
with NumPy arrays of any dimension, and neither does an index; a double-precision scalar beside single-precision arrays,
which CuPy 13 and 14 take differently, is refused. Copies between memory and "device" are counted, and every function,
method and keyword that is used is written down, to be compared with the real library (`api.json`). Kernels are compiled
by the host's C++ compiler from the very text that a device would get, see `compiled`.

Known differences to CuPy: there is no asynchrony; products, sums and sorts are NumPy's; memory is that of the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

USED: set[tuple[str, int, tuple[str, ...]]] = set()  # (name, positional arguments, keywords) of all calls


class Copies:
    """What has crossed between memory and device."""

    to_host = 0  # copies of arrays
    to_device = 0
    looks = 0  # single numbers that Python has looked at
    bytes_to_host = 0

    @classmethod
    def reset(cls) -> None:
        cls.to_host = cls.to_device = cls.looks = cls.bytes_to_host = 0


def _note(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    USED.add((name, len(arguments), tuple(sorted(keywords))))


def plain(value: Any, beside: Any = None) -> Any:
    """What is in an array of the device; scalars as they are."""
    if isinstance(value, ndarray):
        return value.inside
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}: a NumPy array of shape {value.shape} on a device")
    if isinstance(value, np.float64) and beside is not None and beside.dtype == np.float32:
        raise TypeError("a scalar of double precision beside an array of single precision: depends on CuPy's version")
    return value


def _index(at: Any) -> Any:
    if isinstance(at, tuple):
        return tuple(map(_index, at))
    if isinstance(at, ndarray):
        if at.dtype == bool:
            Copies.looks += 1  # how many there are decides the shape
        return at.inside
    if isinstance(at, (np.ndarray, list)):
        raise IndexError("an array in memory as an index of one on a device")
    return at


def wrap(value: Any) -> Any:
    return ndarray(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


class _Flags:
    def __init__(self, flags: Any) -> None:
        self.c_contiguous, self.f_contiguous, self.owndata = flags.c_contiguous, flags.f_contiguous, flags.owndata


class ndarray:
    """An array on the device."""

    __array_ufunc__ = None  # so that NumPy's scalars leave operators to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, inside: np.ndarray) -> None:
        self.inside = inside

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} of an array on a device")

    shape = property(lambda self: self.inside.shape)
    ndim = property(lambda self: self.inside.ndim)
    size = property(lambda self: self.inside.size)
    dtype = property(lambda self: self.inside.dtype)
    nbytes = property(lambda self: self.inside.nbytes)
    itemsize = property(lambda self: self.inside.itemsize)
    strides = property(lambda self: self.inside.strides)
    T = property(lambda self: ndarray(self.inside.T))
    flags = property(lambda self: _Flags(self.inside.flags))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What MPI takes it by; its memory is the host's, and so any library can."""
        assert self.flags.c_contiguous
        data = self.inside.ctypes.data, False
        return {"shape": self.shape, "typestr": self.dtype.str, "data": data, "version": 3}

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.inside.ctypes.data)

    def __len__(self) -> int:
        return len(self.inside)

    def __iter__(self) -> Iterator[ndarray]:
        return (ndarray(self.inside[i, ...]) for i in range(len(self)))

    def __getitem__(self, at: Any) -> ndarray:
        return ndarray(np.asarray(self.inside[_index(at)]))

    def __setitem__(self, at: Any, value: Any) -> None:
        self.inside[_index(at)] = plain(value, self)

    def _looked(self) -> Any:
        if self.size != 1:
            raise ValueError("not a single number")
        Copies.looks += 1
        return self.inside.item()

    def __bool__(self) -> bool:
        return bool(self._looked())

    def __float__(self) -> float:
        return float(self._looked())

    def __int__(self) -> int:
        return int(self._looked())

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> np.ndarray:
        _note("ndarray.get", (), {"out": out} if out is not None else {})
        Copies.to_host += 1
        Copies.bytes_to_host += self.nbytes
        if out is None:
            return self.inside.copy()
        assert out.shape == self.shape and out.dtype == self.dtype
        np.copyto(out, self.inside)
        return out

    def tolist(self) -> Any:
        return self.get().tolist()

    def view(self, dtype: Any) -> ndarray:
        _note("ndarray.view", (dtype,), {})
        return ndarray(self.inside.view(dtype))

    def __repr__(self) -> str:
        return f"device {self.inside!r}"


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(np.ndarray, name)

    def operator(self: ndarray, *others: Any) -> Any:
        found = function(self.inside, *(plain(other, self) for other in others))
        if name.startswith("__i") and name != "__invert__":
            return self
        return found if found is NotImplemented else wrap(found)

    return operator


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul")
for _name in _BINARY:
    for _kind in (_name, f"r{_name}", f"i{_name}"):
        setattr(ndarray, f"__{_kind}__", _operator(f"__{_kind}__"))
for _name in ("neg", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))


def _method(name: str) -> Callable[..., Any]:
    function = getattr(np.ndarray, name)

    def method(self: ndarray, *arguments: Any, **keywords: Any) -> Any:
        _note(f"ndarray.{name}", arguments, keywords)
        out = keywords.pop("out", None)
        found = function(self.inside, *(plain(one) for one in arguments), **{k: plain(v) for k, v in keywords.items()})
        if out is not None:
            out.inside[...] = found
            return out
        return wrap(found)

    return method


for _name in (
    "all", "any", "argmax", "astype", "clip", "copy", "fill", "flatten", "max", "min", "reshape", "sum", "swapaxes",
    "take", "transpose",
):  # fmt: skip
    setattr(ndarray, _name, _method(_name))


# --- functions ---------------------------------------------------------------------------------------------------


def _there(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_there, value))
    return plain(value)


def _function(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        _note(name, arguments, keywords)
        out = keywords.pop("out", None)
        known = {key: _there(value) for key, value in keywords.items()}
        if out is not None:
            function(*map(_there, arguments), **known, out=out.inside)
            return out
        return wrap(function(*map(_there, arguments), **known))

    return call


FUNCTIONS = (
    "abs", "add", "arange", "argsort", "ascontiguousarray", "broadcast_to", "clip", "concatenate", "cumsum", "empty",
    "empty_like", "exp", "expm1", "full", "isfinite", "isin", "log", "log1p", "logaddexp", "maximum", "minimum",
    "multiply", "ones", "searchsorted", "stack", "subtract", "sum", "tanh", "where", "zeros", "zeros_like",
)  # fmt: skip


def asarray(values: Any, dtype: Any = None) -> ndarray:
    _note("asarray", (values,), {} if dtype is None else {"dtype": dtype})
    if isinstance(values, ndarray):
        return values if dtype is None or values.dtype == dtype else ndarray(values.inside.astype(dtype))
    Copies.to_device += 1
    return ndarray(np.array(values, dtype=dtype, order="C"))  # always a copy


def _device_module() -> ModuleType:
    from compiled import ElementwiseKernel, ReductionKernel

    cupy: Any = ModuleType("cupy")
    cupy.__version__, cupy.ndarray, cupy.asarray = "0 (a test double)", ndarray, asarray
    for name in FUNCTIONS:
        setattr(cupy, name, _function(name))
    for name in ("promote_types", "finfo", "float32", "float64", "int64"):
        setattr(cupy, name, getattr(np, name))
    cupy.ElementwiseKernel, cupy.ReductionKernel = ElementwiseKernel, ReductionKernel
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda number: {"name": b"Make-believe"},
        memGetInfo=lambda: (2**32, 2**33),
        runtimeGetVersion=lambda: 12090,
    )
    cupy.cuda = SimpleNamespace(
        runtime=runtime,
        Device=lambda number: SimpleNamespace(use=lambda: None),
        get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None),
    )
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: 0)
    return cupy


# --- sparse matrices ---------------------------------------------------------------------------------------------


class csr_matrix:
    """As cupyx has it, in what is used."""

    def __init__(self, parts: Any, shape: tuple[int, int]) -> None:
        self.data, self.indices, self.indptr = parts
        assert all(isinstance(part, ndarray) for part in parts)
        assert self.indices.dtype == self.indptr.dtype == np.int32, "cupyx has indices of 32 bits"
        self.shape, self.dtype = tuple(shape), self.data.dtype
        assert len(self.indptr) == shape[0] + 1

    def _scipy(self) -> Any:
        from scipy.sparse import csr_matrix as csr

        return csr((self.data.inside, self.indices.inside, self.indptr.inside), shape=self.shape)

    def __getitem__(self, at: Any) -> csr_matrix:
        _note("csr_matrix.__getitem__", (at,), {})
        return _of_scipy(self._scipy()[_index(at)])


def _of_scipy(found: Any) -> csr_matrix:
    parts = found.data, found.indices.astype("i4"), found.indptr.astype("i4")
    return csr_matrix(tuple(ndarray(np.ascontiguousarray(part)) for part in parts), found.shape)


def _vstack(blocks: Any, format: str | None = None) -> csr_matrix:
    from scipy.sparse import vstack

    _note("csr.vstack", (blocks,), {"format": format})
    return _of_scipy(vstack([block._scipy() for block in blocks], format="csr"))


def zeros_pinned(shape: Any, dtype: Any = float) -> np.ndarray:
    _note("zeros_pinned", (shape, dtype), {})
    return np.zeros(shape, dtype)


for _one in (ndarray, csr_matrix):
    _one.__module__ = "cupy" if _one is ndarray else "cupyx.scipy.sparse"

_CUPY: Any = None


@contextmanager
def make_believe() -> Iterator[Any]:
    """`import cupy` gives the double, within."""
    global _CUPY
    if _CUPY is None:
        _CUPY = _device_module()
    sparse: Any = ModuleType("cupyx.scipy.sparse")
    sparse.csr_matrix, sparse.vstack = csr_matrix, _vstack
    cupyx: Any = ModuleType("cupyx")
    cupyx.zeros_pinned, cupyx.scipy = zeros_pinned, ModuleType("cupyx.scipy")
    modules = {"cupy": _CUPY, "cupyx": cupyx, "cupyx.scipy": cupyx.scipy, "cupyx.scipy.sparse": sparse}
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    Copies.reset()
    try:
        yield _CUPY
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
