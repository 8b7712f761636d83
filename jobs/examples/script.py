"""A job from Python: `mpirun -n 4 python jobs/examples/script.py DATA_FOLDER OUT_FOLDER`."""

import sys

from mpi4py import MPI

import mpifed as mf

run = mf.run(
    mf.FedAvg(batch_size=20, local_steps=5, client_optimizer=mf.SGD(mf.PowerDecay(0.5, exponent=0.2))),
    sys.argv[1],
    mf.Softmax(l2=1e-4),
    name="from-a-script",
    rounds=100,
    out=sys.argv[2],
)
if MPI.COMM_WORLD.rank == 0:
    print("accuracy", run.summary["test_accuracy"], "weights", run.model["first"].shape)
