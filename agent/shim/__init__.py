"""Contains the shim: a small process per workload that owns its process tree, its log and its lease.

The agent starts the shim as ``python -I -S FOLDER RUN_DIR`` from a copy of these modules
(``agent/host/tool_files.py``). The shim then runs independently of the agent. The agent may end and restart,
even in another version. The shim imports only a few modules of the standard library, so that it needs only
about 10 MB of memory. It imports all of them at its start, because an upgrade replaces the copy.

It reads from RUN_DIR
  spec.json   the command to start and its limits
  lease       the end of the lease, a time on CLOCK_BOOTTIME
  order.json  the orders of the agent
  exit.room   reserved space, which becomes exit.json on a full disk

It writes to RUN_DIR
  shim.json   its pid, start time and boot, and the start of the workload
  log/        the output, in segments named by their first byte
  epilog.json the start of the epilog, and the end of the workload
  exit.json   the end of the workload; written last, once, atomically

CLOCK_BOOTTIME continues during suspend and never jumps, so a change of the wall clock cannot change a lease.
"""
