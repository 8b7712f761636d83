"""Which floats the generator can give: all that it does give, and of others as many as there are by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifed.audit.attacks.bits import layers, possible, share, small
from mpifed.core.round import Round

ONE = np.float32(1)


def normals(count: int, secure: bool = False) -> Any:
    now = Round(0, 3, np.ones(1, dtype=bool), secure=secure)
    return now.normals("test", np.array([0]), (count,))[0]


def on_a_grid(noise: Any) -> Any:
    """A multiple of a power of two, of which many come from no noise at all."""
    return (np.rint(noise.astype("f8") * 0.01 * 2.0**24) / 2.0**24).astype("f4")


FORWARD: dict[str, Any] = {
    "itself": lambda noise: noise,
    "of some size": lambda noise: noise * np.float32(0.37) * np.float32(40),
    "a mean": lambda noise: noise * np.float32(1.7) / np.float32(3),
    "beside a number": lambda noise: noise * np.float32(0.5) + np.float32(0.001),
    "on a grid": on_a_grid,
}  # fmt: skip


@pytest.mark.parametrize("secure", [False, True])
def test_what_the_generator_gives_is_possible(secure: bool) -> None:
    noise = normals(8000, secure)
    noise = noise[np.abs(noise) < 3.65]  # its tail is made otherwise
    for forward in FORWARD.values():
        assert possible(forward(noise), forward).all()
    assert len(layers()) == 256 and layers().dtype == np.float32


@pytest.mark.parametrize("name", FORWARD)
def test_noise_alone_is_told_from_noise_with_something_added(name: str) -> None:
    forward, rng = FORWARD[name], np.random.default_rng(1)
    noise = normals(60_000)
    alone, added = (share(forward(noise + shift), forward, rng) for shift in (np.float32(0), np.float32(2e-4)))
    assert alone.of > 30 and alone.hits == alone.of
    assert added.p > 1e-3
    assert alone.p < 1e-20 or name in ("on a grid", "beside a number")  # whose low digits are gone
    assert (np.abs(small(noise, FORWARD["itself"])) < 2.0**-8).all()


def test_nothing_to_look_at() -> None:
    found = share(np.ones(5, "f4"), FORWARD["itself"], np.random.default_rng(0))
    assert (found.hits, found.of, found.p) == (0, 0, 1.0)
