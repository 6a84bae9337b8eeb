"""Provide the benchmarks that `./run bench NAME` runs.

A benchmark is a module of this package that defines `SERVICES` and `main`.

`SERVICES` lists the temporary services that the benchmark needs:

- `()`: none.
- `("postgres",)`: PostgreSQL with the migrated schema.
- `("valkey",)`: Valkey. `("postgres", "valkey")` starts both.
- `("demo",)`: a separate demo. Its settings and sign-ins are in the environment (`GPUPOOL_STATE`,
  `GPUPOOL_PORTAL_URL`, ...).

`main(argv)` runs the benchmark and returns the figures as a dict for JSON. Times are in seconds.
"""
