"""Change hosts, GPUs, MIG geometry, pools, health rules, and recover after a restore of the database."""
