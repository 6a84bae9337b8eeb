"""Lists the Python packages and paths that this host offers to its workloads."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

from agent.protocol import LONGEST_PATH, MOST_EXPOSED, EnvironmentSeen

# The versions of these packages are reported to the server, because people choose a host by them.
REPORTED_PACKAGES = (
    "jupyterlab",
    "jupyter-server",
    "ipykernel",
    "ipywidgets",
    "numpy",
    "scipy",
    "pandas",
    "polars",
    "matplotlib",
    "scikit-learn",
    "xgboost",
    "torch",
    "torchvision",
    "tensorflow",
    "jax",
    "cupy",
    "numba",
    "transformers",
    "accelerate",
)


def offered_environment(exposed: list[Path]) -> EnvironmentSeen:
    """Return the Python version, the packages and the paths that workloads of this host can use.

    Notebooks and jobs use the Python environment of the agent.
    """
    packages = {}
    for name in REPORTED_PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # not offered here
    paths = [str(path) for path in exposed if len(str(path)) <= LONGEST_PATH and str(path).isprintable()]
    return EnvironmentSeen(python=platform.python_version(), packages=packages, exposed=paths[:MOST_EXPOSED])
