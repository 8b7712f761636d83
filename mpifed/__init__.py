"""Federated optimization at HPC scale: the server asks, the clients answer, the answers are summed."""

__version__ = "0.1.0"
