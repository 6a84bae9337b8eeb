"""Isolates workloads: sandbox, control groups, network, one user per team, sockets in workload folders."""
