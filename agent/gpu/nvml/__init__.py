"""Reads GPUs through NVML and changes their MIG geometry, in a separate process: python -m agent.gpu.nvml

Only the modules of this package import pynvml. A value that a GPU or its driver does not support is None;
nothing is guessed.
"""
