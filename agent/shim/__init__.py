"""The shim: one small process per workload that owns its process tree, its log and its lease.

Started by the agent as ``python -I -S FOLDER RUN_DIR``, from a copy of these modules that the agent lays out (``agent/host/state.py``),
and then on its own: the agent may die and come back, or be of another version. It imports a few modules of the standard library
and nothing else of ours, so that it stays small (about 10 MB), and all of it at its start: an upgrade changes the copy under it.

It reads from RUN_DIR                         It writes to RUN_DIR
  spec.json   what to start and the limits      shim.json   who it is (pid, start time, boot) and when the workload began
  lease       a time on CLOCK_BOOTTIME          log/        the workload's output, in segments named by their first byte
  order.json  what the agent asks for           epilog.json that the operator's epilog was begun, and how the workload ended
  exit.room   room for exit.json on a full disk exit.json   how it ended, written last, once, atomically

CLOCK_BOOTTIME counts through sleep and never jumps, so no change of the wall clock can shorten or lengthen a lease.
"""
