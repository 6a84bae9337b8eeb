"""Apply health rules to hardware events; detect failing hosts, missing GPUs and stray processes."""
