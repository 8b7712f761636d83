"""Sources of the user's own, named on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mpifed.cli import data
from mpifed.core.errors import UsageError
from mpifed.data.store import open_federation

SOURCE = """
from dataclasses import dataclass

import numpy as np

from mpifed.data.samples import Samples, Source


@dataclass(frozen=True)
class Waves(Source):
    rows: int
    slope: float = 1.0

    def read(self, seed: int) -> Samples:
        X = np.linspace(0, 1, 2 * self.rows, dtype="f4").reshape(self.rows, 2)
        return Samples(X, self.slope * X.sum(axis=1).astype("f8"))


@dataclass(frozen=True)
class Misspelt(Waves):
    def reads(self, seed: int) -> Samples:
        return self.read(seed)


@dataclass(frozen=True)
class Shadows(Waves):
    split: str = "rows"


class Unrelated:
    pass
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waves.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "waves", raising=False)  # of another test of this process


def make(folder: Path, *arguments: str) -> None:
    given = [*arguments, "--split", "rows", "--clients", "3", "--out", str(folder)]
    CliRunner().invoke(data, given, catch_exceptions=False, standalone_mode=False)


def test_a_source_of_ones_own(tmp_path: Path) -> None:
    make(tmp_path / "out", "waves:Waves", "--rows", "30", "--slope", "2.5", "--test-fraction", "0.2")
    made = open_federation(tmp_path / "out")
    assert (made.clients, made.samples, made.test_samples, made.features) == (3, 24, 6, 2)
    assert made.provenance["source"] == "waves:Waves"
    assert made.provenance["options"]["source"] == {"rows": 30, "slope": 2.5}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["waves:Waves"], "Missing option '--rows'"),
        (["waves:Waves", "--rows", "many"], "Invalid value for '--rows': 'many' is not a valid integer"),
        (["waves:Waves", "--row", "3"], "No such option '--row'. (Did you mean "),
        (["waves:Misspelt", "--rows", "3"], 'waves:Misspelt: has "reads": did you mean "read"?'),
        (["waves:Unrelated"], "waves:Unrelated: is no Source; derive it from mpifed.data.samples.Source"),
        (["waves:Shadows"], "waves:Shadows: split: every source has that option; rename the field"),
        (["no_such_module:A"], "no_such_module:A: importing no_such_module: ModuleNotFoundError: "),
        (["parqet"], "'parqet': is not a source; did you mean \"parquet\"?; give one of digits"),
    ],
)
def test_what_is_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, click.UsageError)) as caught:
        make(tmp_path / "out", *arguments)
    ours = isinstance(caught.value, UsageError)
    assert (str(caught.value) if ours else caught.value.format_message()).startswith(said)
    assert not (tmp_path / "out").exists()
