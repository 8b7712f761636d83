"""Tests of devices: on a real one when asked to (`-m gpu`), and what is said without one."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "laws")]
