"""Change hosts, GPUs, MIG geometry, pools and health rules; recover after a restore of the database."""
