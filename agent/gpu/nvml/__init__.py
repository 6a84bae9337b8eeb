"""Reads GPUs through NVML and changes their MIG geometry, in a separate process: python -m agent.gpu.nvml

Only the modules of this package import pynvml. If a GPU or its driver does not support a value, the value is
None. No value is guessed.
"""
