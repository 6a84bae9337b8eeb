"""Score the forecast of demand, and the replay with which the number of GPUs is chosen.

    ./run bench telemetry --only forecast --json

Both use generated demand with fixed seeds on which nothing was tuned. ``docs/benchmarks.md`` describes the
figures.
"""

from __future__ import annotations

from benchmarks.telemetry_forecast import daily_demand, recorded_quarter


def measure(
    forecast_seeds: range = daily_demand.UNSEEN_SEEDS,
    replay_seeds: range = recorded_quarter.UNSEEN_SEEDS,
    weeks: int = recorded_quarter.WEEKS,
) -> dict[str, float]:
    """Return the scaled error of the forecast, and the error of p95 waits in replays of ``weeks`` weeks."""
    return {
        "forecast_mase": round(daily_demand.score_forecasts(forecast_seeds), 4),
        "capacity_wait_error": round(recorded_quarter.score_replays(replay_seeds, weeks), 4),
    }
