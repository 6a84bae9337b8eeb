"""Train with PyTorch DDP over several hosts, with one process per host.

With several GPUs per host, start it with ``torchrun ddp_training.py``. Environment variables tell each
process how to reach the others (docs/gangs.md).

Hosts receive the notice of a preemption at different steps. So after each step, the processes check together
whether any of them has a notice. If so, the first process saves, and all processes report the checkpoint.
"""

import gc
import os
import time

import gpupool_contract as gpupool
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "100"))
PAUSE = float(os.environ.get("PAUSE", "0"))

if "MASTER_ADDR" not in os.environ:
    raise SystemExit(
        "The hosts of this job cannot reach each other: their agents need --network host (docs/gangs.md)."
    )
use_cuda = torch.cuda.is_available()
distributed.init_process_group("nccl" if use_cuda else "gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")

total = torch.tensor(float(rank + 1), device=device)
distributed.all_reduce(total)
print(f"rank {rank} of {size}: the ranks, counted from 1, add up to {total.item():g}", flush=True)


def train() -> None:
    """Train until the last step, from the checkpoint if there is one. After a notice, save and return."""
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    checkpoint = gpupool.checkpoint_dir() / "ddp.pt"
    first = 0
    if checkpoint.exists():  # only the first host has the checkpoint if the hosts do not share homes
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        first = saved["step"]
        model.module.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
    begin = torch.tensor(first, device=device)
    distributed.broadcast(begin, 0)
    for value in model.module.state_dict().values():
        distributed.broadcast(value, 0)

    draw = torch.Generator().manual_seed(rank)  # each process draws different data
    for step in range(int(begin), STEPS):
        data = torch.randn(32, 8, generator=draw).to(device)
        loss = nn.functional.mse_loss(model(data), data.sum(dim=1, keepdim=True))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        time.sleep(PAUSE)
        leave = torch.tensor(float(gpupool.notice() is not None), device=device)
        distributed.all_reduce(leave, distributed.ReduceOp.MAX)
        if leave:
            if rank == 0:
                part = checkpoint.with_suffix(".part")
                torch.save(
                    {
                        "step": step + 1,
                        "model": model.module.state_dict(),
                        "optimiser": optimiser.state_dict(),
                    },
                    part,
                )
                part.replace(checkpoint)
            distributed.barrier()
            gpupool.checkpoint_done()
            return

    mean = torch.cat([value.flatten() for value in model.module.parameters()])
    largest = mean.clone()
    distributed.all_reduce(mean)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    assert torch.equal(largest, mean / size), "every process ends with the same weights"
    print(f"rank {rank}: done with loss {loss.item():.4f}", flush=True)


train()
# The model references the process group. Free it, so that the group's threads end before the interpreter.
gc.collect()
distributed.barrier()  # no process may exit while another process still communicates with it
distributed.destroy_process_group()
