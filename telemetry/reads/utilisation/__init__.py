"""Read what the utilisation page shows besides the waterfall and the use by group."""
