"""Figures of runs and of partitions, without a display; `mpifed plot` and `plot` of Python draw them.

matplotlib is imported where it is needed.
"""
