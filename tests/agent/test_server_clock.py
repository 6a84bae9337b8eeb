"""Test the measurement of the server's clock, and the clock of spooled samples."""

from __future__ import annotations

from pathlib import Path

from agent.protocol import SampleRow
from agent.server.sample_spool import SampleSpool
from agent.server.server_clock import DRIFT, ClockMeasurement, ServerClock
from tests.agent.conftest import AgentProcess
from tests.agent.fake_edge import FakeEdge


def test_the_error_is_half_of_the_round_trip_and_grows_with_time() -> None:
    clock = ServerClock()
    clock.note(10.0, 10.4, 5_000.0)
    measured = clock.measurement
    assert measured == ClockMeasurement(5_000.0 - 10.2, (10.4 - 10.0) / 2, 10.4)
    assert measured is not None and measured.error_at(110.4) == measured.error + 100 * DRIFT


def test_a_slow_round_trip_does_not_replace_an_exact_measurement() -> None:
    clock = ServerClock()
    clock.note(10.0, 10.01, 5_000.0)
    exact = clock.measurement
    clock.note(20.0, 24.0, 5_012.0)
    assert clock.measurement == exact


def test_a_measurement_that_contradicts_an_earlier_one_replaces_it() -> None:
    clock = ServerClock()
    clock.note(10.0, 10.01, 5_000.0)
    clock.note(20.0, 24.0, 9_000.0)  # the clock of the server was set
    assert clock.measurement == ClockMeasurement(9_000.0 - 22.0, 2.0, 24.0)


def test_spooled_batches_of_this_boot_get_the_present_measurement(tmp_path: Path) -> None:
    clock = ServerClock()
    spool = SampleSpool(tmp_path, boot_id="first", clock=clock)
    unmeasured = spool.add([SampleRow("u", 1.0, uptime=50.0)])
    clock.note(60.0, 60.2, 5_000.0)
    measured = spool.add([SampleRow("u", 2.0, uptime=55.0)])
    for number in (unmeasured, measured):
        batch = spool.read(number)
        assert (batch.boot_id, batch.server_offset) == ("first", 5_000.0 - 60.1)
        assert batch.server_offset_error is not None and 0.1 < batch.server_offset_error < 0.102
    # After a reboot, only the measurement that was stored with a batch fits its rows.
    later = ServerClock()
    later.note(1.0, 1.2, 9_000.0)
    again = SampleSpool(tmp_path, boot_id="second", clock=later)
    assert [again.read(number).server_offset for number in (unmeasured, measured)] == [None, 5_000.0 - 60.1]


async def test_samples_carry_the_time_since_the_boot_and_the_clock_of_the_server(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.seconds_ahead = 30.0

    def seconds_ahead() -> list[float]:
        """Return by how much the server's clock is ahead at each row of the last batch, as measured."""
        last = edge.batches[-1] if edge.batches else None
        if last is None or last.server_offset is None:
            return []
        return [row.uptime + last.server_offset - row.ts for row in last.rows if row.uptime is not None]

    # The agent may have measured the clock before it was set.
    await edge.until(lambda: any(ahead > 20 for ahead in seconds_ahead()))
    batch = edge.batches[-1]
    assert batch.boot_id and batch.server_offset_error is not None
    assert len(seconds_ahead()) == len(batch.rows)
    assert all(abs(ahead - 30.0) <= batch.server_offset_error + 0.5 for ahead in seconds_ahead())
