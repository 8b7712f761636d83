"""Data for networks of texts: which byte comes next. A source of one's own, of which each file is a client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifed.data.sources import Samples, Source


@dataclass(frozen=True)
class Texts(Source):
    """Pieces of text files, as bytes, and the byte that comes after each."""

    folder: Path
    """Folder of the files; each is a client."""
    pattern: str = "**/*.md"
    """Which files."""
    length: int = 40
    """Bytes of a piece."""
    every: int = 40
    """Bytes from the beginning of one piece to the next."""

    names_clients = True

    def read(self, seed: int) -> Samples:
        X, y, ids = [], [], []
        for path in sorted(self.folder.glob(self.pattern)):
            text = np.frombuffer(path.read_text("utf-8").encode("ascii", "replace"), np.uint8)
            pieces = np.lib.stride_tricks.sliding_window_view(text, self.length + 1)[:: self.every]
            X.append(pieces[:, :-1])
            y.append(pieces[:, -1].astype(np.int64))
            ids += [path.stem] * len(pieces)
        return Samples(np.concatenate(X), np.concatenate(y), ids=np.array(ids))
