"""What was computed from private rows before a run is part of what it releases: refused, or said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mpifed as mf
from mpifed.core.errors import UsageError
from mpifed.data.store import open_federation
from mpifed.files.json_file import read_json

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 3)), np.arange(60) % 2
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=["red", "blue", None] * 20, ill=Y)
CLASSES = 'classes = ["0", "1"]\n'
GIVEN = CLASSES + "".join(f"columns.{name} = {{range = [-5, 5]}}\n" for name in "abc")
GIVEN += 'columns.kind = {categories = ["blue", "red"], fill = "red", range = [0, 1]}\n'
ROWS = "--clients 4 --split rows"
CSV = f"csv a.csv --scale none {ROWS} --missing"
# files by name
FILES = {
    "a.svm": "".join(f"{x:.3f} 1:{x:.3f} {2 + (i == 7)}:1\n" for i, x in enumerate(X[:, 0])),
    "a.csv": "a,b,ill\n" + "".join(f"{x:.3f},{z:.3f},{y}\n" for (x, z, _), y in zip(X, Y, strict=True)) + ",1.5,1\n",
    "a.toml": CLASSES,
    "a.json": json.dumps(
        {"user_data": {name: {"x": X[i::2].tolist(), "y": X[i::2, 0].tolist()} for i, name in enumerate("uv")}}
    ),
}
# options of mpifed data, what of them was computed from rows
PREPARED: dict[str, tuple[str, list[str]]] = {
    "digits": (f"digits {ROWS}", []),
    "unit rows": (f"digits {ROWS} --scale unit-rows", []),
    "scaled": (f"digits {ROWS} --scale standard", ["scale standard"]),
    "by label": (f"digits {ROWS} --partition dirichlet:0.5", ["partition dirichlet:0.5"]),
    "rows, then their largest": (f"digits {ROWS} --scale unit-rows,unit", ["scale unit"]),
    "widest row": (f"svmlight a.svm --task regression {ROWS}", ["number of columns"]),
    "gaps": (f"{CSV} drop --label b --task regression", ["rows without gaps"]),
    "drawn by class": (
        f"{CSV} zero --label ill --given a.toml --test-fraction 0.2", ["test rows that were drawn"],
    ),
    "each client's, by class": (
        f"{CSV} zero --label ill --given a.toml --client-test-fraction 0.2", ["test rows that were drawn"],
    ),
    "drawn of all": (f"{CSV} zero --label b --task regression --test-fraction 0.2", []),
    "users ignored": (f"leaf a.json --task regression {ROWS}", ["partition of ordered rows"]),
    "users": ("leaf a.json --task regression", []),
    "synthetic": (f"synthetic --samples 80 --features 3 --task classification {ROWS}", []),
}  # fmt: skip


def warned(data: Any, out: Path, task: str = "classification", **privacy: Any) -> bool:
    """Whether a run says that its preparation is taken as public."""
    given = mf.Privacy(delta=1e-5, clip=1.0, noise_multiplier=1.0, **privacy)
    model = mf.LeastSquares() if task == "regression" else mf.Softmax()
    method = mf.FedAvg(batch_size=5, client_optimizer=mf.SGD(0.1))
    run = mf.run(method, data, model, rounds=1, privacy=given, out=out, progress="none")
    return any("public_preparation = true" in text for text in read_json(run.path / "run.json")["warnings"])


@pytest.mark.parametrize(("options", "computed"), PREPARED.values(), ids=PREPARED)
def test_what_was_computed_from_rows_is_refused(
    options: str, computed: list[str], make_data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    data = open_federation(make_data(tmp_path / "data", *options.split()))
    assert data.fitted == computed
    if not computed:
        assert not warned(data.path, tmp_path / "run", data.task)
        return
    said = rf"was prepared with what was computed from its rows, .*: {', '.join(computed)}; .*public_preparation = true"
    with pytest.raises(UsageError, match=said):
        warned(data.path, tmp_path / "run", data.task)


def test_what_is_known_to_all_is_said(tmp_path: Path) -> None:
    """Of arrays nobody has stated the classes; `check`, run.json and `show` say that they are taken as public."""
    data = mf.FederatedDataset.from_arrays(X, Y, clients=2)
    with pytest.raises(UsageError, match="computed from its rows, which no epsilon covers: classes; "):
        warned(data, tmp_path / "run")
    assert warned(data, tmp_path / "run", public_preparation=True)


def test_a_frame_is_private_when_all_is_stated(tmp_path: Path) -> None:
    """Scales, categories, what fills gaps and classes from a file: one record moves nothing of the preparation."""
    given: dict[str, Any] = {"label": "ill", "clients": 2, "categorical": "one-hot"}
    said = "median of a, .*categories of kind, .*scale standard, classes; state it [(]given public.toml"
    with pytest.raises(UsageError, match=said):
        warned(mf.FederatedDataset.from_dataframe(FRAME, missing="median", **given), tmp_path / "run")
    (tmp_path / "public.toml").write_text(GIVEN)
    scales = []
    for value in (0.5, 4.5):
        FRAME.loc[7, "a"] = value
        data = mf.FederatedDataset.from_dataframe(FRAME, given=tmp_path / "public.toml", **given)
        assert not warned(data, tmp_path / f"run-{value}")
        scales.append(np.concatenate(open_federation(data.path).scaling))
    assert (scales[0] == scales[1]).all()
