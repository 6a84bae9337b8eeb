"""Read the metrics that the portal serves to Prometheus at ``/metrics``."""
