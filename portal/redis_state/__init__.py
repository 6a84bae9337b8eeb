"""Short-lived keys and channels in Redis that the edge and the portal share. Losing one costs time only; rows hold the truth."""
