"""Figures of runs and of partitions, without a display; `mpifed plot` and `plot` of Python draw them.

matplotlib and plotext are imported where they are needed.
"""
