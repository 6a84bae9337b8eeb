"""Change hosts, GPUs, MIG geometry, pools and health rules.

Also reconcile the hosts with the database after the restore of a backup.
"""
