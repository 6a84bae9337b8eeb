"""Train with Lightning. A callback saves after a notice of preemption, and the next attempt resumes.

Needs lightning 2. STEPS is the number of training steps. PAUSE is the number of seconds added to each step.
"""

import os
import time
from typing import Any

import gpupool_contract as gpupool
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "200"))
PAUSE = float(os.environ.get("PAUSE", "0"))
checkpoint = gpupool.checkpoint_dir() / "lightning.ckpt"


class LeaveOnNotice(lightning.Callback):
    """Save, report the checkpoint and exit after the first step at which a process has a notice.

    If the job runs on several hosts, all its processes exit after the same step.
    """

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        noticed = torch.tensor(gpupool.notice() is not None, device=module.device)
        if not trainer.strategy.reduce_boolean_decision(bool(noticed), all=False):
            return
        part = checkpoint.with_suffix(".part")
        trainer.save_checkpoint(part)  # every process must call this method; only the first process writes
        if trainer.is_global_zero:
            part.replace(checkpoint)
        trainer.strategy.barrier()
        gpupool.checkpoint_done()
        print("saved after step", trainer.global_step, flush=True)
        raise SystemExit(0)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        time.sleep(PAUSE)
        data, target = batch
        return nn.functional.mse_loss(self.layers(data), target)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


lightning.seed_everything(7, verbose=False)
data = torch.randn(4096, 16)
# Do not shuffle: a fit that resumes in the middle of an epoch must continue with the next batch.
batches = DataLoader(TensorDataset(data, data.square().sum(dim=1, keepdim=True)), batch_size=64)
trainer = lightning.Trainer(
    max_steps=STEPS,
    max_epochs=-1,
    callbacks=[LeaveOnNotice()],
    accelerator="auto",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_nodes=int(os.environ.get("GPUPOOL_HOST_COUNT", "1")),
)
print("begun", flush=True)
trainer.fit(Model(), batches, ckpt_path=checkpoint if checkpoint.exists() else None, weights_only=False)
print("steps", trainer.global_step, flush=True)
