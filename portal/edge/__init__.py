"""Run the edge process, which serves the connections of agents, workspace traffic and live page events."""
