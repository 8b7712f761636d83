"""Plain PyTorch: a loop over clients, written by hand.

loop: minibatches from memory, one model that is loaded anew, one flat sum. joined: of FedSGD, the rows of all clients
as one batch, which only a simulation can do. Both on 2 processes of one thread, summed by gloo.
"""

from __future__ import annotations

import os
import sys

import torch
from common import Clock, Work, given
from torch.nn.functional import cross_entropy
from torch_parts import DECAY, Batches, Network, Tensors, tensors, weights

SETTINGS = "loop", "joined"


def present(work: Work) -> list[int]:
    """The clients of a round; alike in all processes, whose generators have one seed."""
    if not work.case.present:
        return list(range(work.case.clients))
    return torch.randperm(work.case.clients, generator=GENERATOR)[: work.case.present].tolist()


GENERATOR = torch.Generator().manual_seed(3)


def local_steps(model: Network, optimizer: torch.optim.Optimizer, batches: Batches) -> None:
    """The local steps of one client."""
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def loop(work: Work, clock: Clock, rank: int, size: int) -> Network:
    """One model, loaded anew for each client of this process."""
    here = range(rank, work.case.clients, size)
    clients = {client: Batches(*one) for client, one in zip(here, data(work, here), strict=True)}
    local = Network()
    optimizer = torch.optim.SGD(local.parameters(), work.case.step, weight_decay=DECAY)
    flat = torch.nn.utils.parameters_to_vector(local.parameters()).detach().clone()
    total = torch.empty_like(flat)
    clock.start()
    for _ in range(work.all_rounds):
        total.zero_()
        chosen = present(work)
        for client in chosen:
            if client in clients:
                load(local, flat)
                local_steps(local, optimizer, clients[client])
                total += torch.nn.utils.parameters_to_vector(local.parameters()).detach()
        torch.distributed.all_reduce(total)
        torch.div(total, len(chosen), out=flat)
        clock.tick()
    load(local, flat)
    return local


def joined(work: Work, clock: Clock, rank: int, size: int) -> Network:
    """One step on the rows of all clients of this process."""
    if work.case.steps != 1:
        raise SystemExit("joined: only where clients take one step")
    clients = [Batches(*one) for one in data(work, range(rank, work.case.clients, size))]
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), work.case.step, weight_decay=DECAY)
    everybody = work.case.batch * work.case.clients
    clock.start()
    for _ in range(work.all_rounds):
        xs, ys = zip(*(batch for client in clients for batch in client), strict=True)
        optimizer.zero_grad()
        (cross_entropy(model(torch.cat(xs)), torch.cat(ys), reduction="sum") / everybody).backward()
        gradient = torch.nn.utils.parameters_to_vector([one.grad for one in model.parameters()])
        torch.distributed.all_reduce(gradient)
        first = model.first.weight.numel()
        model.first.weight.grad.copy_(gradient[:first].view_as(model.first.weight))
        model.second.weight.grad.copy_(gradient[first:].view_as(model.second.weight))
        optimizer.step()
        clock.tick()
    model.steps *= len(clients)
    return model


def data(work: Work, which: range) -> list[tuple[Tensors, object]]:
    """Tensors and case of the clients of this process."""
    return [(one, work.case) for one in tensors(work, which)]


def load(model: Network, flat: torch.Tensor) -> None:
    """Put a flat model into a network."""
    with torch.no_grad():
        start = 0
        for parameter in model.parameters():
            parameter.copy_(flat[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()


def play(work: Work, rank: int, size: int) -> None:
    """The rounds of one process; the first reports."""
    torch.set_num_threads(1)
    clock = Clock(work)
    model = {"joined": joined, "loop": loop}[work.setting](work, clock, rank, size)
    counts = torch.tensor([model.rows, model.steps])
    torch.distributed.all_reduce(counts)
    if rank == 0:
        clock.report(weights(model), *counts.tolist(), versions={"torch": torch.__version__})


def main() -> None:
    work = given(__doc__, SETTINGS)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        play(work, torch.distributed.get_rank(), torch.distributed.get_world_size())
        torch.distributed.barrier()  # a process whose peer has left aborts
        torch.distributed.destroy_process_group()
    else:
        launcher = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"
        os.execv(sys.executable, [sys.executable, *launcher, *sys.argv])


if __name__ == "__main__":
    main()
