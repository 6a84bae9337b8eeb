"""Run the edge process: connections of agents, traffic of workspaces, live page events."""
