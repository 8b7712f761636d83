"""Observers of runs: what is measured goes to them as it comes. Those that a job names, and their base class."""

from __future__ import annotations

from mpifed.observers.base import Observer as Observer
from mpifed.observers.mlflow_store import MLflow as MLflow
from mpifed.observers.tensorboard import TensorBoard as TensorBoard
from mpifed.observers.weights_and_biases import WandB as WandB

OBSERVERS: dict[str, type[Observer]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def observer_name(observer: Observer) -> str:
    """The name of an observer in a job, or that of its class."""
    known = (name for name, kind in OBSERVERS.items() if kind is type(observer))
    return next(known, f"{type(observer).__module__}:{type(observer).__qualname__}")
