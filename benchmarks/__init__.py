"""Benchmarks, run by `./run bench NAME`.

A benchmark is a module of this package with two things:

- `SERVICES`: what it needs started and thrown away again: `()`, `("postgres",)` with the schema migrated, `("valkey",)`,
  both, or `("demo",)` for a whole demo of its own, whose settings and sign-ins it finds in its environment
  (`GPUPOOL_STATE`, `GPUPOOL_PORTAL_URL`, ...);
- `main(argv)`: runs it and returns the figures, seconds for times, as a dict that JSON can carry.
"""
