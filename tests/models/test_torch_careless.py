"""What people write who do not know mpifed: it has the right derivatives and bits, or is refused with what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import careless
import numpy as np
import pytest
import torch
from records import flat
from test_torch_bits import hashes

from mpifed import laws
from mpifed.core.record import map_leaves
from mpifed.maths.objectives import TorchNetwork

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
HERE = Path(__file__).parent


# what `careless` sets for the whole process when it is imported is of no matter to other tests
torch.set_default_dtype(torch.float32)
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def as_it_was_before() -> Iterator[None]:
    yield
    torch.set_num_threads(1)  # of a pass that was refused
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()


@pytest.mark.parametrize("name", careless.RIGHT)
def test_gradients_are_finite_differences_and_samples_count_as_they_would_alone(name: str) -> None:
    """Clipped too, also where PyTorch cannot differentiate many samples at once, as through recurrent layers."""
    objective, rng = TorchNetwork(f"careless:right_{name}"), np.random.default_rng(5)
    assert objective.check(64, 10) == []
    model = objective.start(64, 10, np.random.default_rng(0), "float64")
    X, y = rng.integers(0, 17, (3, 6, 64)).astype("f8"), rng.integers(0, 10, (3, 6))
    weights, before = rng.uniform(0.5, 1.5, (3, 6)), X.copy()
    direction = map_leaves(lambda leaf: rng.standard_normal(leaf.shape), model)

    def value(step: float) -> float:
        at = map_leaves(lambda leaf, along: leaf + step * along, model, direction)
        return float((weights * objective.loss(at.head, objective.scores_of(at, X), y)).sum())

    slopes = map_leaves(lambda leaf: leaf.sum(axis=0), objective.gradient(model, X, y, weights))
    claim = float(flat(slopes) @ flat(direction))
    assert (value(1e-6) - value(-1e-6)) / 2e-6 == pytest.approx(claim, rel=1e-5, abs=1e-6)
    np.testing.assert_array_equal(X, before)
    own = map_leaves(lambda leaf: np.stack([leaf + 0.01 * i for i in range(3)]), model)
    laws.check_alone(laws.ModelFunction(objective), laws.Trial(own, X, y, weights))


@pytest.mark.launch
def test_one_hash_on_any_number_of_ranks(digits: Path, launch: Any, write_job: Any, tmp_path: Path) -> None:
    job = {
        "name": "careless", "rounds": 1, "data": {"path": str(digits)},
        "model": {"name": "torch", "build": "careless:right_lstm", "shape": [64]},
        "algorithm": {"name": "scaffold", "batch_size": 8, "local_steps": 2,
                      "client_optimizer": {"learning_rate": 0.05}},
        "record": {"evaluate_every": 1, "evaluate_rows": 60, "checkpoint_every": 0},
        "sweep": {"model.build": [f"careless:right_{name}" for name in careless.RIGHT]},
    }  # fmt: skip
    path = write_job(tmp_path / "job.toml", job)
    found = []
    for ranks in (None, 3):
        ended = launch(ranks, "run", path, "--out", tmp_path / str(ranks), cwd=ranks and HERE)
        assert ended.code == 0, ended.text
        found.append(hashes(tmp_path / str(ranks) / "sweep.csv"))
    assert found[0] == found[1] and all(len(one) == 64 for one in found[0])


@pytest.mark.parametrize("name", careless.REFUSED)
def test_refused(name: str) -> None:
    place = f"careless:refused_{name}"
    try:
        found = TorchNetwork(place).check(64, 10)
    except Exception as error:
        found = [str(error)]
    assert len(found) == 1 and found[0].startswith(f'[model] build = "{place}": ')
    assert re.search(careless.REFUSED[name][1], found[0]), found[0]


def test_a_module_in_the_place_of_a_function() -> None:
    with pytest.raises(Exception, match="is a module; give a function that builds it"):
        TorchNetwork("careless:already_built").check(64, 10)


def test_layers_of_vectors_and_data_of_images() -> None:
    assert TorchNetwork("careless:right_gru", (1, 8, 8)).check(64, 10) == []  # which reshapes its samples itself
    (said,) = TorchNetwork("careless:right_weight_norm", (1, 8, 8)).check(64, 10)
    assert re.search(r"give the \[model\] shape that it takes, of vectors \[64\]", said)
