"""Tests GPUs when the server asks for it.

``runner`` is part of the agent. It starts a process, ``gpu_check``, that tests one GPU.
"""
