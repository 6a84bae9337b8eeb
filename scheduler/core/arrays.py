"""Define the types of the numpy arrays that the planner uses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


def intersection(one: Mask, other: Mask) -> Mask:
    """Return the mask of the elements that are True in both masks."""
    mask: Mask = one & other
    return mask
