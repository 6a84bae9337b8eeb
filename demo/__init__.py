"""Create the demo organisation: its people, hosts, demand and simulated past."""
