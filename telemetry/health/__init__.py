"""Apply health rules to hardware events, and detect failing hosts, missing GPUs and stray processes."""
