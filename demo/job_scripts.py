"""Build the commands of the demo's jobs.

Each command runs a small Python program that works in steps and declares its load to the simulated GPU. The
program follows docs/workload-contract.md, so that a visitor can watch how it is preempted and resumes.
"""

from __future__ import annotations

TRAINING_SCRIPT = """\
python - <<'PY'
import json, os, pathlib, signal, time

STEPS, STEP_SECONDS = {steps}, 3
folder = pathlib.Path(os.environ["GPUPOOL_CHECKPOINT_DIR"])
checkpoint = folder / "progress.json"
step = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
verb, devices = "resuming" if step else "starting", os.environ["CUDA_VISIBLE_DEVICES"]
print(f"{{verb}} at step {{step}} on {{devices}}", flush=True)
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))

def save():
    part = folder / "progress.json.part"
    part.write_text(json.dumps({{"step": step}}))
    part.rename(checkpoint)
    (folder / ".done").write_text("")  # tells gpupool that the checkpoint is complete

while step < STEPS:
    time.sleep(STEP_SECONDS)
    step += 1
    if step % 20 == 0:
        print(f"step {{step}} of {{STEPS}}", flush=True)
    if asked or step % 100 == 0:
        save()
        print(f"checkpoint written at step {{step}}", flush=True)
        asked.clear()
PY
"""


def training_command(*, steps: int, utilisation: int) -> str:
    """Return a shell command that runs ``steps`` steps of 3 s each.

    It declares a utilisation of ``utilisation`` per cent to the simulated GPU.
    """
    return f"export GPUPOOL_SIMULATED_UTILISATION={utilisation}\n" + TRAINING_SCRIPT.format(steps=steps)
