"""The shim: one small process per workload that owns its process tree, its log and its lease.

The agent starts it as ``python -I -S FOLDER RUN_DIR`` from a copy of these modules
(``agent/host/tool_files.py``). Then it runs independently: the agent may die and restart, also in another
version. The shim imports only a few modules of the standard library, so that it needs about 10 MB. It imports
all of them at its start, because an upgrade replaces the copy.
"""
