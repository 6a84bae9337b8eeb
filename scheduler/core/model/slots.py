"""Define the slot, the planner's measure of GPU capacity."""

from __future__ import annotations

from agent.protocol import SLOTS_PER_GPU

__all__ = ["SLOTS_PER_GPU", "SLOT_SECONDS_PER_GPU_HOUR", "WHOLE_GPU_PROFILE"]

SLOT_SECONDS_PER_GPU_HOUR = SLOTS_PER_GPU * 3600
WHOLE_GPU_PROFILE = ""  # the profile of a whole GPU
