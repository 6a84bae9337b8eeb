"""The control plane and its hosts in virtual time, for `./run bench simulate`.

Real: the planner, apply with its checks, the ticks, what the server makes of agents' frames (all over PostgreSQL), the agent
with its runs, locks, generations and files, the wire's encoding. Made up: the clocks, the network, the shims with their
workloads, and when processes die. One seed decides all of that, and gives the same course again.
"""
