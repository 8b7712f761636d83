"""The same job from Python: `mpirun -n 4 python jobs/examples/script.py DATA_FOLDER OUT_FOLDER`."""

import sys

from mpifed.run.launch import launch

job = {
    "name": "from-a-script",
    "rounds": 100,
    "data": {"path": sys.argv[1]},
    "model": {"name": "softmax", "l2": 1e-4},
    "algorithm": {"name": "fedavg", "batch_size": 20, "local_steps": 5},
    "client_optimizer": {"learning_rate": {"initial": 0.5, "exponent": 0.2}},
}
result = launch(job, out=sys.argv[2])
if result is not None:  # on rank 0
    print("accuracy", result.columns["test_accuracy"], "weights", result.model.first.shape)
