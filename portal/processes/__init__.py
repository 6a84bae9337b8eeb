"""Report which processes of the server run, and serve the probes of processes without a web server."""
