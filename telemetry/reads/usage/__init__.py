"""Read the use of hosts, processes and counters that agents report once a minute."""
