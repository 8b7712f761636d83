"""`--help` of every command, and what a shell completes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
from click.shell_completion import BashComplete, CompletionItem
from click.testing import CliRunner

from mpifed.cli import main


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its words, those of groups included."""
    for name in main.list_commands(click.Context(main)):
        command = main.commands[name]
        yield name, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for part in command.list_commands(context):
                inner = command.get_command(context, part)
                assert inner is not None
                yield f"{name} {part}", inner


COMMANDS = dict(all_commands())
OPTIONS = [(name, option) for name, command in COMMANDS.items() for option in command.params
           if isinstance(option, click.Option)]  # fmt: skip


def test_summaries_are_whole() -> None:
    assert {name for name, command in COMMANDS.items() if command.get_short_help_str().endswith("...")} == set()
    text = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    assert "..." not in text.partition("Commands:")[2] and len(main.commands) >= 12
    for name, command in main.commands.items():
        assert f"  {name:9}{command.get_short_help_str()}\n" in text, (
            "a summary takes more than a line of 80 characters"
        )


def test_every_option_says_what_it_does_and_its_default() -> None:
    for name, option in OPTIONS:
        said = option.help or ""
        assert len(said) > 3 and not said.startswith("["), f"{name} --{option.name}"
        default = option.get_default(click.Context(COMMANDS[name], info_name=name))
        if isinstance(default, str | int | float) and not isinstance(default, bool) and not option.hidden:
            assert option.show_default or "[default:" in said, f"{name} --{option.name}"


# --- completion --------------------------------------------------------------------------------------------------


def completions(*words: str, last: str = "") -> list[str]:
    """What a shell offers for the last word after the others."""
    items = BashComplete(main, {}, "mpifed", "_MPIFED_COMPLETE").get_completions([*words], last)
    assert all(isinstance(item, CompletionItem) for item in items)
    return [item.value for item in items]


def test_commands_and_options() -> None:
    assert set(completions()) == set(main.commands)
    assert completions(last="sh") == ["show"]
    assert completions("run", "job.toml", last="--over") == ["--overwrite"]
    assert completions("run", "job.toml", "--progress", last="") == ["auto", "bar", "lines", "none"]
    assert "digits" in completions("data") and completions("data", "digits", last="--par") == ["--partition"]


def test_completion_loads_no_heavy_library() -> None:
    program = """
import sys
from click.shell_completion import ZshComplete
from mpifed.cli import main
complete = ZshComplete(main, {}, "mpifed", "_MPIFED_COMPLETE").get_completions
assert complete([], "") and complete(["run"], "--") and complete(["show"], "")
assert not {"numpy", "pydantic", "h5py", "rich"} & set(sys.modules)
assert complete(["explain"], "fedavg") and complete(["new", "--model"], "soft")
assert not {"scipy", "pydantic", "h5py", "mpi4py", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
