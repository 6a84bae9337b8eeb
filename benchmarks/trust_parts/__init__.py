"""Provide the parts of `./run bench trust`. Each part runs in a process of its own."""
