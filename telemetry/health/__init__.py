"""Turn hardware events into actions by operator-edited rules; detect failing hosts, missing GPUs and stray processes."""
