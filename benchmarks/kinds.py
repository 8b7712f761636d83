"""Kinds of what a round's time goes to, and the functions that belong to each, by their own time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Function: TypeAlias = tuple[str, int, str]  # of a profile: file ("~" of what is compiled), line, name
Own: TypeAlias = Mapping[Function, float]  # seconds of each function, without what it calls

PRODUCTS, GATHERING, ELEMENTWISE = "matrix products", "gathering rows", "elementwise, new arrays"
DRAWING, ROUNDING, MPI = "drawing, privacy, masks", "rounding to the grid", "MPI and waiting"
SERVER, GLUE = "server", "Python's glue"
KINDS = (PRODUCTS, GATHERING, ELEMENTWISE, DRAWING, ROUNDING, MPI, SERVER, GLUE)

# (kind, file, name): the first that a function matches. Operators of arrays and NumPy's ufuncs, such as @, += and
# np.multiply, have no entry of their own in a profile: they are own time of the function that they stand in
_COMPILED = r"^~$"
_RULES = [
    (kind, re.compile(file), re.compile(name))
    for kind, file, name in (
        (PRODUCTS, r"mpifed/maths/arrays\.py$", r"^(product|transposed_product|common_product)$"),
        (PRODUCTS, r"mpifed/maths/sparse\.py$|scipy/sparse/", r"matmul|matmat|matvec|multivector|multimatrix"),
        (PRODUCTS, r"mpifed/maths/objectives/mlp\.py$", r"^step$"),
        (PRODUCTS, r"mpifed/algorithms/hybrid\.py$", r"^(partial_scores|pulled)$"),
        (PRODUCTS, _COMPILED, r"cs[rc]_matvec|numpy\.(dot|vdot|inner|matmul)\b|c_einsum|'dot' of|run_backward"),
        (PRODUCTS, _COMPILED, r"torch\S*\.(linear|conv\dd|matmul|bmm|addmm)\b"),
        (GATHERING, _COMPILED, r"_loops\.gather|'take' of|posix\.preadv|readinto"),
        (GATHERING, r"mpifed/core/loops\.py$", r"^(scale_dense|scale_columns|_scale)$"),
        (GATHERING, r"mpifed/shards/", r""),
        (GATHERING, r"mpifed/core/block\.py$", r"^(take|rows|together)$"),
        (GATHERING, r"mpifed/core/record\.py$", r"^(take|put|replaced)$"),
        (GATHERING, r"h5py", r""),
        (ROUNDING, _COMPILED, r"_loops\.(add_encoded|decode)"),
        (ROUNDING, r"mpifed/maths/fixedpoint\.py$", r""),
        (ROUNDING, r"mpifed/comm/accumulate\.py$", r"^(_put|_scattered|_coded|begin)$"),
        (MPI, r"mpifed/comm/transport\.py$", r""),
        (MPI, r"mpifed/comm/allreduce\.py$", r""),
        (MPI, r"mpi4py|^~$", r"MPI|[Aa]llreduce|I?[Bb]cast|[Bb]arrier"),
        (DRAWING, _COMPILED, r"_loops\.(first_distinct|alias_level|noisy)|random|[Cc]rypt|hash|'update' of|seal"),
        (DRAWING, r"mpifed/core/(round|row_seeds)\.py$", r""),
        (DRAWING, r"mpifed/core/loops\.py$", r"^(first_distinct|alias_level|noisy)$"),
        (DRAWING, r"mpifed/(maths/)?privacy/|mpifed/maths/clipping\.py$", r""),
        (DRAWING, r"mpifed/algorithms/private\.py$", r""),
        (DRAWING, r"mpifed/comm/((masking|encryption)/|key_streams|keys)", r""),
        (DRAWING, r"/(cryptography|randomgen|seal)/", r""),
        (GLUE, r"mpifed/maths/", r"^(<lambda>|<genexpr>|__init__|__new__|namespace|gradient|_layers_of|_head_of)$"),
        (GLUE, r"mpifed/maths/objectives/", r"^(local_step|_derivatives|_as_here)$"),
        (ELEMENTWISE, r"mpifed/maths/|mpifed/core/loops\.py$|_arraysetops|/torch/", r""),
        (ELEMENTWISE, r"mpifed/algorithms/local\.py$", r"^(_add|_scaled|_shrunk|_subtract|stay)$"),
        (ELEMENTWISE, _COMPILED, r"_loops\.combine|_operator\.\w*(add|sub|mul|div|neg)|'numpy\.ufunc'|torch"),
        (ELEMENTWISE, _COMPILED, r"_loops\.(swish|below_largest|residuals)"),
        (ELEMENTWISE, _COMPILED, r"numpy\.(array|empty|zeros|copyto|where|concatenate|arange)\b"),
        (ELEMENTWISE, _COMPILED, r"'(astype|copy|sum|max|min|mean|fill|sort|argsort|cumsum|clip)' of 'numpy"),
    )
]  # fmt: skip


def kind_of(function: Function) -> str:
    """The kind of a function; glue is what no rule names."""
    file, _, name = function
    file = file.replace("\\", "/")
    return next((kind for kind, files, names in _RULES if files.search(file) and names.search(name)), GLUE)


def by_kind(clients: Own, server: Own) -> dict[str, float]:
    """Seconds of each kind; all that the server's profile has is the server's."""
    seconds = dict.fromkeys(KINDS, 0.0)
    for function, own in clients.items():
        seconds[kind_of(function)] += own
    seconds[SERVER] += sum(server.values())
    return seconds


def largest(kind: str, clients: Own, server: Own, count: int = 3) -> list[str]:
    """The functions of a kind with most time of their own."""
    members = server if kind == SERVER else {name: own for name, own in clients.items() if kind_of(name) == kind}
    return [shown(function) for function in sorted(members, key=lambda function: -members[function])[:count]]


def shown(function: Function) -> str:
    """The name of a function, of what is compiled without the words around it."""
    file, _, name = function
    if file != "~":
        return f"{file.replace(chr(92), '/').rpartition('/')[2].removesuffix('.py')}.{name}"
    method = re.search(r"method '?([\w.]+)'?(?: of '([\w.]+)')?", name)
    return ".".join(part for part in (method[2], method[1]) if part) if method else name


def merged(several: Iterable[Own]) -> dict[Function, float]:
    """The sums over several profiles, such as those of all ranks."""
    sums: dict[Function, float] = {}
    for own in several:
        for function, seconds in own.items():
            sums[function] = sums.get(function, 0.0) + seconds
    return sums
