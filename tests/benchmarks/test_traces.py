"""Test the trace benchmarks on small traces, with figures computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import eta, helios, kueue, philly
from benchmarks.traces.queue_baselines import TraceJob
from benchmarks.traces.trace_replay import TraceReplay
from scheduler.core.model.snapshot import Priority

HOUR, DAY = 3600, 86_400


def helios_file(folder: Path, *jobs: tuple[int, str, int, int, int]) -> str:
    """Write a Helios trace. Each job is (submitted s, cluster, GPUs, nodes, runtime s)."""
    lines = [
        "# a remark",
        "job_id,user,tenant,class,submit_time,num_chips,chip_type,num_nodes,duration_s,walltime_limit_s,"
        "final_status",
    ]
    for number, (at, cluster, gpus, nodes, runtime) in enumerate(jobs, 1):
        lines.append(f"{number},u,{cluster},x,{at}000000,{gpus},,{nodes},{runtime}.0,{runtime}.0,COMPLETED")
    path = folder / "helios.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def philly_file(folder: Path, *jobs: tuple[str, int, int, str]) -> str:
    """Write a Philly trace. Each job is (timestamp, runtime s, GPUs, cluster)."""
    rows = [f"{at},{runtime}.0,{gpus},1.0,{cluster}" for at, runtime, gpus, cluster in jobs]
    path = folder / "philly.csv"
    path.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + "\n".join(rows) + "\n")
    return str(path)


def test_helios_plans_each_cluster_alone(tmp_path: Path) -> None:
    """Check that job 3 waits for the gang in FIFO order. SJF and gpupool's order ("ours") start it early."""
    jobs = helios_file(
        tmp_path,
        (0, "vcvlY", 8, 1, 100),
        (1, "vcvlY", 16, 2, 50),
        (2, "vcvlY", 8, 1, 20),
        (0, "vcvGl", 8, 1, 10),
    )
    answer = helios.main(["--jobs", jobs])
    assert answer["fifo"]["clusters"]["vcvlY"] == {
        "mean_jct": round((100 + (99 + 50) + (148 + 20)) / 3, 1),
        "mean_queue": round((99 + 148) / 3, 1),
        "p99_queue": 148,
        "max_queue": 148,
    }
    assert answer["sjf"]["clusters"]["vcvlY"]["max_queue"] == 99
    assert answer["ours"]["clusters"]["vcvlY"]["max_queue"] == 99
    assert (
        answer["fifo"]["clusters"]["vcvGl"]["mean_queue"]
        == answer["ours"]["clusters"]["vcvGl"]["mean_queue"]
        == 0
    )


def test_helios_names_the_missing_column_or_file(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("job_id,user\n1,u\n")
    with pytest.raises(SystemExit, match="has no column tenant"):
        helios.main(["--jobs", str(path)])
    with pytest.raises(SystemExit, match="is not a file"):
        helios.main(["--jobs", str(tmp_path / "none.csv")])


def test_philly_reads_two_months_as_one_pool(tmp_path: Path) -> None:
    path = philly_file(
        tmp_path,
        ("2017-09-30 23:59:59", 5, 1, "a"),
        ("2017-10-02 00:00:00", 5, 12, "b"),
        ("2017-10-01 00:00:00", 5, 8, "a"),
        ("2017-12-01 00:00:00", 5, 1, "a"),
    )
    first, second = philly.read(Path(path))
    assert (first.id, first.nodes, first.per_node, first.team) == (1, 1, 8, 2)
    assert (second.id, second.nodes, second.per_node, second.team) == (2, 2, 6, 1)
    assert second.submitted - first.submitted == DAY


def test_philly_names_the_value_that_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for row, wrong in (
        (("2017-10-01 00:00:00", 5, 0, "a"), "line 2: num_gpus is 0; allowed: 1 or more"),
        (("2017-10-01 00:00:00", 5, "x", "a"), "line 2: invalid literal"),
        (("2017-10-01 00:00:00", 5, 64, "a"), "1 jobs, the largest on 8 nodes, do not fit on 4 nodes"),
        (("2018-10-01 00:00:00", 5, 1, "a"), "0 jobs"),
    ):
        with pytest.raises(SystemExit, match=wrong):
            philly.main(["--jobs", philly_file(tmp_path, row), "--nodes", "4"])  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        philly.main(["--nodes", "none"])
    assert "'none' is not a whole number from 1 to 10000" in capsys.readouterr().err


def test_limits_are_one_to_ten_times_the_runtime_and_depend_on_the_seed() -> None:
    jobs = [TraceJob(n, 0, 1, 1, 1000, 1000) for n in range(200)]
    limits = [job.limit for job in philly.with_limits(jobs, 42)]
    assert min(limits) >= 1000 and max(limits) <= 10_000
    assert sorted(limits)[100] == pytest.approx(
        1000 * 10**0.5, rel=0.25
    )  # log-uniform: the median is the geometric mean
    assert limits == [job.limit for job in philly.with_limits(jobs, 42)]
    assert limits != [job.limit for job in philly.with_limits(jobs, 43)]


def test_philly_compares_the_queue_orders(tmp_path: Path) -> None:
    """Replay three jobs on one node: 4 GPUs for an hour, the whole node, and one GPU for a short time."""
    path = philly_file(
        tmp_path,
        ("2017-10-01 00:00:00", 3600, 4, "a"),
        ("2017-10-01 00:00:01", 3600, 8, "a"),
        ("2017-10-01 00:00:02", 60, 1, "b"),
    )
    answer = philly.main(["--jobs", path, "--nodes", "1"])
    assert answer["fifo"]["max_queue"] == 2 * HOUR - 2
    assert answer["easy"]["max_queue"] == answer["ours_limits"]["max_queue"] == HOUR - 1
    assert answer["ours_limits"]["p99_by_size"] == {"1": 0, "2-8": HOUR - 1}
    assert answer["wall"] >= 0


def test_the_replay_uses_predictions_from_finished_jobs() -> None:
    """Predict a short runtime for the sixth job of team 1, because five jobs used a tenth of their limits.

    The sixth job starts before the job of team 2, which was submitted first but has no history.
    """
    past = [TraceJob(n, n * HOUR, 1, 8, 360, 3600, team=1, user=1) for n in range(1, 6)]
    busy = TraceJob(6, 10 * HOUR, 1, 8, 2 * HOUR, 2 * HOUR, team=3, user=3)
    long = TraceJob(7, 10 * HOUR + 1, 1, 8, 20 * HOUR, 20 * HOUR, team=2, user=2)
    short = TraceJob(8, 10 * HOUR + 2, 1, 8, 360, 3600, team=1, user=1)
    started = TraceReplay([*past, busy, long, short], 1).run()
    assert started[8] == 12 * HOUR
    assert started[7] == 12 * HOUR + 360


def test_eta_compares_expected_starts_with_actual_starts(tmp_path: Path) -> None:
    """Run jobs of one hour one after another on one node; all run as long as predicted."""
    jobs = [(f"2017-10-01 00:00:{n:02d}", 3600, 8, "a") for n in range(6)]
    answer = eta.main(["--jobs", philly_file(tmp_path, *jobs), "--nodes", "1", "--every", "1"])
    assert answer["asked"] == 6
    assert answer["queued"] + answer["without_expected_start"] == 5
    assert 0 <= answer["late_share"] <= 1
    assert answer["median_error"] >= 0


def test_all_workloads_of_the_kueue_benchmark_are_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one cohort of two queues. A large workload fills the guarantee of its queue and does not wait."""
    kinds = (
        kueue.WorkloadClass("small", 1, Priority.LOW, 100, 3, 200),
        kueue.WorkloadClass("medium", 5, Priority.NORMAL, 500, 2, 500),
        kueue.WorkloadClass("large", 20, Priority.HIGH, 1200, 1, 1000),
    )
    monkeypatch.setitem(kueue.SIZES, "baseline", (1, 2, kinds))
    answer: dict[str, Any] = kueue.main(["--size", "baseline"])
    assert answer["workloads"] == 12
    assert answer["time_to_admission"]["large"] == 0
    assert answer["admissions_per_second"] > 0
    assert answer["decision_seconds"] > 0
