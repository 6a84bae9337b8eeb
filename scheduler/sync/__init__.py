"""Exchange state with hosts: store the reports of agents, and build the desired state that agents apply."""
