"""Simulate the control plane and its hosts in virtual time, for `./run bench simulate`.

These components are real:

- the planner, the apply with its checks, and the periodic tasks;
- the server's handling of agents' frames, and the encoding of the frames;
- the agent with its runs, locks, generations and files;
- the database (PostgreSQL).

These components are simulated: the clocks, the network, the shims with their workloads, and the deaths of
processes. One seed determines all of them, so a simulation can be repeated exactly.
"""
