"""Start the command line as ``python -m cli`` or as the ``gpupool`` command."""

from __future__ import annotations

from cli.main import run


def main() -> None:
    """Run the command line and end the process with its exit code."""
    raise SystemExit(run())


if __name__ == "__main__":
    main()
