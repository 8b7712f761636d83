"""Notebooks of the documents as Markdown, with what their cells printed and drew: on the site and for tests."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_SHELL, _FILE = "%%bash\n", "%%writefile "


def as_markdown(path: Path) -> str:
    """The cells of a notebook in order; pictures are named after it, see `pictures`."""
    return "\n\n".join(_parts(path)) + "\n"


def pictures(path: Path) -> dict[str, bytes]:
    """Every picture that the notebook's cells have drawn, by its name."""
    return {name: base64.b64decode(data["image/png"]) for name, data in _outputs(path) if "image/png" in data}


def _cells(path: Path) -> list[dict[str, Any]]:  # as JSON has them
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def _outputs(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for i, cell in enumerate(_cells(path)):
        for output in cell.get("outputs", ()):
            yield f"{path.stem}-{i}.png", output.get("data", {})


def _parts(path: Path) -> Iterator[str]:
    for i, cell in enumerate(_cells(path)):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield _code(source)
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                yield f"![What the cell above draws]({path.stem}-{i}.png)"
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                yield f"```text\n{text.rstrip()}\n```"


def _code(source: str) -> str:
    """A cell: Python, a file that it writes, or commands."""
    if source.startswith(_SHELL):
        return f"```console\n{source.removeprefix(_SHELL)}\n```"
    if source.startswith(_FILE):
        title, _, text = source.removeprefix(_FILE).partition("\n")
        return f'```python title="{title}"\n{text}\n```'
    return f"```python\n{source}\n```"
