"""Train with the Trainer of Hugging Face transformers. A callback saves and stops it after a notice.

Needs transformers 5 and accelerate. STEPS is the number of training steps. PAUSE is the number of seconds
added to each step.
"""

import os
import time
from typing import Any

import gpupool_contract as gpupool
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEPS = int(os.environ.get("STEPS", "200"))
PAUSE = float(os.environ.get("PAUSE", "0"))
folder = gpupool.checkpoint_dir() / "trainer"


class LeaveOnNotice(TrainerCallback):
    """After a notice, let the trainer save and stop. Report the checkpoint when it is written."""

    leaves = False

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **more: Any
    ) -> TrainerControl:
        time.sleep(PAUSE)
        if gpupool.notice():
            self.leaves = control.should_save = control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        if self.leaves:
            gpupool.checkpoint_done()
            print("saved after step", state.global_step, flush=True)


class Model(nn.Module):
    """An example of a model that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, data: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layers(data)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


torch.manual_seed(7)
data = torch.randn(4096, 16)
rows = [{"data": each, "labels": each.square().sum().reshape(1)} for each in data]
callback = LeaveOnNotice()
trainer = Trainer(
    model=Model(),
    args=TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=64,
        seed=7,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    ),
    train_dataset=rows,
    callbacks=[callback],
)
print("begun", flush=True)
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if folder.is_dir() else None)
if not callback.leaves:
    print("steps", trainer.state.global_step, flush=True)
