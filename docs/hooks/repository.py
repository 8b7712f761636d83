"""Files of the repository on the site: what a page links to outside docs/ becomes a page, or a picture, of it.

So links are ordinary relative ones, which work in a clone, in a forge and on the site; `mkdocs build --strict` fails
where one leads nowhere. README.md is the first page, and notebooks are pages. Other text is shown as a code block.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel
from notebooks import as_markdown, pictures

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?(?=\))")
PICTURES = {".png", ".svg"}
_NAVIGATION = ("slurm/README.md",)


def on_files(files: Files, config: Any) -> Files:
    """Add README.md, what the navigation names, and whatever the pages link to, and these in turn."""
    files.append(File.generated(config, "index.md", content=_text("README.md")))
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        folder = path.parent.relative_to(ROOT / "docs")
        download = f'<a href="{path.name}" download>This page as a notebook</a>\n'
        content = f"{as_markdown(path)}\n{download}"
        files.append(File.generated(config, f"{folder}/{path.stem}.md", content=content))
        for name, picture in pictures(path).items():
            files.append(File.generated(config, f"{folder}/{name}", content=picture))
    pages = {_path(file.src_uri): file.content_string for file in files.documentation_pages()}
    waiting = [*pages.items()]
    for path in _NAVIGATION:
        waiting.append(("README.md", f"[]({path})"))
    while waiting:
        source, text = waiting.pop()
        for link in LINK.finditer(text):
            path = _resolved(source, link["path"])
            if path.startswith("docs/") or not (ROOT / path).exists() or files.get_file_from_path(_uri(path)):
                continue
            files.append(_file(path, config))
            if path.endswith(".md"):
                waiting.append((path, _text(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to files of the repository as links to their pages."""
    source = _path(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        path = _resolved(source, match["path"])
        if not (ROOT / path).exists():
            return match[0]  # MkDocs says so
        return posixpath.relpath(_uri(path), posixpath.dirname(page.file.src_uri) or ".") + (match["anchor"] or "")

    return LINK.sub(link, markdown)


def _resolved(source: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _uri(path: str) -> str:
    """Where a file of the repository lies on the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
    shown = Path(path).suffix in {".md", *PICTURES}
    return f"repository/{path}" if shown else f"repository/{path}.md"


def _path(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    if uri == "index.md":
        return "README.md"
    return uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"


def _file(path: str, config: Any) -> File:
    inclusion = InclusionLevel.NOT_IN_NAV
    if Path(path).suffix in PICTURES:
        return File.generated(config, _uri(path), abs_src_path=str(ROOT / path), inclusion=inclusion)
    if path.endswith(".md"):
        return File.generated(config, _uri(path), content=_text(path), inclusion=inclusion)
    if (ROOT / path).is_dir():
        names = sorted(child.name for child in (ROOT / path).iterdir() if not child.name.startswith(("_", ".")))
        body = "\n".join(f"- `{name}`" for name in names)
    else:
        body = f"````{Path(path).suffix.lstrip('.') or 'text'}\n{_text(path)}\n````"
    return File.generated(config, _uri(path), content=f"# {path}\n\n{body}\n", inclusion=inclusion)


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
