from mpifed.core.record import Array

VERSION: int

def add_encoded(
    values: Array,
    is_float: bool,
    n: int,
    m: int,
    bound: float,
    constants: tuple[float, float],
    first: bool,
    offsets: tuple[int, int],
    sums: Array,
    is_32: bool,
) -> bool: ...
def decode(sums: Array, is_32: bool, scale: float, is_float: bool, out: Array) -> None: ...
def gather(
    raw: Array,
    kind: str,
    at: Array | None,
    scale: Array | None,
    shift: Array | None,
    is_float: bool,
    outs: tuple[Array, ...],
) -> None: ...
def combine(factors: tuple[float, ...], arrays: tuple[Array, ...], is_float: bool, out: Array) -> None: ...
def swish(z: Array, gate: Array, active: Array, is_float: bool) -> None: ...
def swish_slope(z: Array, gate: Array, active: Array, back: Array, is_float: bool) -> None: ...
def first_distinct(words: Array, width: int, sizes: Array, count: int, rows: Array, found: Array) -> None: ...
def alias_level(
    words: Array,
    upper: bool,
    table: Array,
    bits: int,
    middle: int,
    shift: int,
    first: bool,
    out: Array,
    ties: Array,
) -> int: ...
def noisy(
    values: Array,
    is_float: bool,
    factor: float,
    most: float,
    truncate: bool,
    noise: Array,
    scale: float,
    to_float: bool,
    out: Array,
) -> None: ...
