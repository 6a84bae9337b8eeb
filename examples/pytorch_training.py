"""Train with PyTorch. A preemption after any step does not change the final weights, bit for bit.

The checkpoint contains everything that a step depends on: weights, optimiser, learning rate, and the states
of the random number generators. STEPS is the number of training steps. PAUSE is the number of seconds added
to each step.
"""

import hashlib
import os
import time

import gpupool_contract as gpupool
import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", "500"))
PAUSE = float(os.environ.get("PAUSE", "0"))

torch.use_deterministic_algorithms(True)
torch.manual_seed(7)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)).to(device)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
data = torch.randn(4096, 16)
target = data.square().sum(dim=1, keepdim=True)
checkpoint = gpupool.checkpoint_dir() / "training.pt"


def random_state() -> dict[str, torch.Tensor]:
    """Return the states of the random number generators that a step uses."""
    return {
        "cpu": torch.get_rng_state(),
        **({"cuda": torch.cuda.get_rng_state()} if device.type == "cuda" else {}),
    }


def save(step: int) -> None:
    """Write a new file, then replace the last checkpoint. So a kill never damages the last checkpoint."""
    part = checkpoint.with_suffix(".part")
    parts = {"model": model, "optimiser": optimiser, "schedule": schedule}
    torch.save(
        {"step": step, "random": random_state(), **{k: v.state_dict() for k, v in parts.items()}}, part
    )
    part.replace(checkpoint)


def load() -> int:
    """Restore the last checkpoint, if there is one. Return the number of completed steps."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model.load_state_dict(saved["model"])
    optimiser.load_state_dict(saved["optimiser"])
    schedule.load_state_dict(saved["schedule"])
    torch.set_rng_state(saved["random"]["cpu"])
    if "cuda" in saved["random"] and device.type == "cuda":
        torch.cuda.set_rng_state(saved["random"]["cuda"])
    return int(saved["step"])


first = load()
print("attempt", gpupool.attempt(), "begins after step", first, flush=True)
for step in range(first, STEPS):
    batch = torch.randint(len(data), (64,))
    loss = nn.functional.mse_loss(model(data[batch].to(device)), target[batch].to(device))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    schedule.step()
    time.sleep(PAUSE)
    if gpupool.notice():
        save(step + 1)
        gpupool.checkpoint_done()
        raise SystemExit(0)

weights = b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())
print("weights", hashlib.sha256(weights).hexdigest(), "loss", f"{loss.item():.4f}")
