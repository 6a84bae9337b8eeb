"""Provide the benchmarks that `./run bench NAME` runs.

A benchmark is a module of this package that defines:

- `SERVICES`: the temporary services that the benchmark needs. `()` is none; `("postgres",)` is PostgreSQL
  with the schema migrated; `("valkey",)` is Valkey; both may be given. `("demo",)` is a separate demo, whose
  settings and sign-ins are in the environment (`GPUPOOL_STATE`, `GPUPOOL_PORTAL_URL`, ...).
- `main(argv)`: runs the benchmark and returns the figures as a dict for JSON, with times in seconds.
"""
