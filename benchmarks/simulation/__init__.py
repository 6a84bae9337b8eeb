"""Simulate the control plane and its hosts in virtual time, for `./run bench simulate`.

Real components: the planner, apply with its checks, periodic tasks, the server's handling of agents' frames
(all on PostgreSQL), the agent with its runs, locks, generations and files, and the wire encoding. Simulated
components: the clocks, the network, the shims with their workloads, and process deaths. One seed determines
all simulated components, so that a simulation can be repeated exactly.
"""
