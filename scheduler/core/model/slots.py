from __future__ import annotations

SLOTS_PER_GPU = 840  # divisible by 2..8: a GPU can be cut into that many equal parts


SLOT_SECONDS_PER_GPU_HOUR = SLOTS_PER_GPU * 3600


WHOLE_GPU_PROFILE = ""  # the profile of a whole GPU
