"""A job whose data folder is not there says how it is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mpifed.cli import main

JOB = """# A job.
# Make the shards:  mpifed data mnist --split rows \\
#   --clients 10 --out data/mnist-rows-10
name = "t"
rounds = 1
[data]
path = "data/mnist-rows-10"
[model]
name = "softmax"
[algorithm]
name = "ssca"
batch_size = 10
rho = [0.9, 0.6]
gamma = [0.9, 0.7]
"""


@pytest.mark.parametrize("command", ["run", "check"])
def test_the_error_has_the_command(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)
    ended = CliRunner().invoke(main, [command, "job.toml"])
    assert ended.exit_code == 3
    assert "data/mnist-rows-10: no such folder; as job.toml says" in ended.output
    assert "`mpifed data mnist --split rows --clients 10 --out data/mnist-rows-10`" in ended.output
    ended = CliRunner().invoke(main, [command, "job.toml", "--set", "data.path=elsewhere"])
    assert ended.exit_code == 3 and "`mpifed data SOURCE ... --out elsewhere`" in ended.output
    assert not Path("runs").exists()
