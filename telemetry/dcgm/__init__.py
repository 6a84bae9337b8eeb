"""Read the metrics of dcgm-exporter from hosts, as a second source of readings besides the agent."""
