"""Test the reclaim benchmark: a gang within its guarantee gets its units with the fewest evictions."""

from __future__ import annotations

import pytest

from benchmarks import reclaim


@pytest.mark.parametrize("hosts", [10, 40])
def test_a_tenth_of_the_hosts_is_reclaimed_as_whole_hosts(hosts: int) -> None:
    figures = reclaim.main(["--hosts", str(hosts), "--rounds", "1"])
    tasks = hosts // 10
    assert set(figures) == {"hosts", "placed", "evicted", "violations", "seconds"}
    assert (figures["placed"], figures["evicted"], figures["violations"]) == (tasks, 8 * tasks, 0)


@pytest.mark.parametrize("hosts", ["0", "five", "10001"])
def test_a_wrong_number_of_hosts_is_refused_with_a_message(
    hosts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        reclaim.main(["--hosts", hosts])
    assert f"{hosts!r} is not a whole number from 10 to 10000" in capsys.readouterr().err
