"""CuPy's kernels, compiled by the host's C++ compiler: the loop is written here, its body is the kernel's own text."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TYPES = {
    "float32": "float", "float64": "double", "int32": "int", "int64": "long long", "uint64": "unsigned long long",
    "bool": "bool",
}  # fmt: skip
_HEAD = "#include <cmath>\n#include <cstddef>\nusing namespace std;\n"
FLAGS = ("-O1", "-std=c++14", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")


class Parameter(NamedTuple):
    """`raw T x`"""

    raw: bool
    type: str
    name: str


def parameters(text: str) -> list[Parameter]:
    """Of a kernel's declaration."""
    found = [one.split() for one in text.split(",") if one.strip()]
    return [Parameter(one[0] == "raw", one[-2], one[-1]) for one in found]


@cache
def library(source: str) -> Any:
    """A shared library of C++ code; kept in the system's folder for temporary files."""
    folder = Path(tempfile.gettempdir()) / f"mpifed-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{hashlib.sha256((source + ' '.join(FLAGS)).encode()).hexdigest()[:32]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            code, made = Path(aside) / "kernel.cpp", Path(aside) / "kernel.so"
            code.write_text(source)
            subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, "-o", made, code], check=True)
            os.replace(made, path)
    return ctypes.CDLL(str(path))


def _types(given: list[tuple[Parameter, Any]]) -> dict[str, str]:
    """What the letters stand for, by the arrays among the arguments; as CuPy does, a contradiction is an error."""
    from make_believe import ndarray

    known: dict[str, str] = {}
    for one, value in given:
        if one.type in TYPES:
            if isinstance(value, ndarray):
                assert one.type == value.dtype.name, f"{one.name}: {value.dtype} for {one.type}"
            continue
        if isinstance(value, ndarray) and known.setdefault(one.type, value.dtype.name) != value.dtype.name:
            raise TypeError(f"Type is mismatched. {one.name} {value.dtype} {known[one.type]}")
    return known


def _scalar(value: Any, name: str) -> Any:
    return ctypes.c_double(value) if "float" in name else ctypes.c_longlong(int(value))


class ElementwiseKernel:
    """As CuPy's."""

    def __init__(self, in_params: str, out_params: str, operation: str, name: str = "kernel", **more: Any) -> None:
        assert set(more) <= {"options", "preamble"}, more
        self.inputs, self.outputs = parameters(in_params), parameters(out_params)
        self.operation, self.name = operation, name
        reserved = {"i", "n"} & {one.name for one in (*self.inputs, *self.outputs)}
        assert not reserved, f"{name}: CuPy uses {reserved} itself"

    def __call__(self, *arguments: Any, size: int | None = None) -> Any:
        from make_believe import ndarray, plain

        count, everything = len(self.inputs), [*self.inputs, *self.outputs]
        assert len(arguments) in (count, len(everything)), f"{self.name}: {len(arguments)} arguments"
        pairs = list(zip(everything, arguments, strict=False))
        for _, value in pairs:
            plain(value)  # nothing of NumPy
        types = _types(pairs)
        looped = [value for one, value in pairs if not one.raw and isinstance(value, ndarray)]
        shape = np.broadcast_shapes(*(value.shape for value in looped)) if looped else (size,)
        assert shape[0:1] != (None,), f"{self.name}: how many?"
        assert size is None or not looped, f"{self.name}: size beside arrays that are not raw"
        values = list(arguments)
        for one in everything[len(arguments) :]:
            assert not one.raw, f"{self.name}: {one.name} is raw and must be given"
            values.append(ndarray(np.empty(shape, types.get(one.type, one.type))))
        for one, value in zip(self.outputs, values[count:], strict=True):
            assert one.raw or value.shape == shape, f"{self.name}: {one.name} has shape {value.shape}, not {shape}"
        self._run(list(zip(everything, values, strict=True)), types, shape)
        made = values[count:]
        return made[0] if len(made) == 1 else tuple(made)

    def _run(self, given: list[tuple[Parameter, Any]], types: dict[str, str], shape: tuple[int, ...]) -> None:
        from make_believe import ndarray

        declared, lines, passed, back = [], [], [], []
        for number, (one, value) in enumerate(given):
            kind, written = types.get(one.type, one.type), number >= len(self.inputs)
            if not isinstance(value, ndarray):
                declared.append(f"{'double' if 'float' in kind else 'long long'} {one.name}_")
                lines.append(f"const {TYPES[kind]} {one.name} = ({TYPES[kind]}){one.name}_;")
                passed.append(_scalar(value, kind))
                continue
            if one.raw:
                assert value.flags.c_contiguous, f"{self.name}: {one.name} does not lie side by side"
                array, name = value.inside, one.name
            else:
                array, name = np.ascontiguousarray(np.broadcast_to(value.inside, shape)), f"{one.name}_"
                reference = "" if written else "const "
                lines.append(f"{reference}{TYPES[kind]}& {one.name} = {name}[i];")
                if written and array is not value.inside:
                    back.append((value.inside, array))
            declared.append(f"{'' if written else 'const '}{TYPES[kind]}* {name}")
            passed.append(ctypes.c_void_p(array.ctypes.data))
            back.append((None, array))  # alive
        typed = "".join(f"typedef {TYPES[kind]} {letter};\n" for letter, kind in sorted(types.items()))
        scalars = "\n".join(line for line in lines if "[i]" not in line)
        each = "\n".join(line for line in lines if "[i]" in line)
        source = (
            f'{_HEAD}{typed}extern "C" void run(long long count_, {", ".join(declared)}) {{\n{scalars}\n'
            f"for (ptrdiff_t i = 0; i < count_; ++i) {{\n{each}\n{self.operation}\n}}\n}}\n"
        )
        library(source).run(ctypes.c_longlong(int(np.prod(shape))), *passed)
        for into, array in back:
            if into is not None:
                into[...] = array


class ReductionKernel:
    """As CuPy's, over one axis."""

    def __init__(
        self, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str, identity: Any,
        name: str = "reduce_kernel", **more: Any,
    ) -> None:  # fmt: skip
        assert set(more) <= {"options"}, more
        (self.input,), (self.output,) = parameters(in_params), parameters(out_params)
        self.expressions, self.name = (map_expr, reduce_expr, post_map_expr, identity), name

    def __call__(self, values: Any, out: Any = None, axis: int | None = None) -> Any:
        from make_believe import ndarray

        each, both, after, first = self.expressions
        moved = np.ascontiguousarray(np.moveaxis(values.inside, axis, -1))
        kind, result = TYPES[values.dtype.name], TYPES[self.output.type]
        found = np.empty(moved.shape[:-1], self.output.type)
        source = (
            f'{_HEAD}typedef {kind} T;\nextern "C" void run(long long count_, long long width_, const T* in_, '
            f"{result}* out_) {{\nfor (long long i = 0; i < count_; ++i) {{\n{result} a = {first};\n"
            f"for (long long j = 0; j < width_; ++j) {{ const T& {self.input.name} = in_[i * width_ + j]; "
            f"const {result} b = {each}; a = {both}; }}\n{result}& {self.output.name} = out_[i];\n{after};\n}}\n}}\n"
        )
        library(source).run(
            ctypes.c_longlong(found.size), ctypes.c_longlong(moved.shape[-1]),
            ctypes.c_void_p(moved.ctypes.data), ctypes.c_void_p(found.ctypes.data),
        )  # fmt: skip
        return ndarray(found)
