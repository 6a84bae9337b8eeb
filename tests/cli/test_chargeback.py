"""Test the command that shows the charges of a month."""

from __future__ import annotations

import json
from collections.abc import Callable

from portal.models import User
from tests.cli.conftest import Gpupool
from tests.world import World


def test_finance_sees_the_charges_and_the_equation_of_a_month(
    gpupool: Gpupool, served_world: World, sign_in: Callable[[User], str]
) -> None:
    sign_in(served_world.finance)
    shown = gpupool("chargeback", "show")
    assert shown.code == 0, shown.err
    assert "As finance you see the charges of every team." in shown.out
    assert "charged" in shown.out and "difference" in shown.out
    overview = json.loads(gpupool("chargeback", "show", "--json").out)["overview"]
    assert [float(overview["charged"]), float(overview["equation"]["difference"])] == [0, 0]


def test_a_member_sees_no_equation_and_a_wrong_month_is_refused(
    gpupool: Gpupool, served_world: World, sign_in: Callable[[User], str]
) -> None:
    sign_in(served_world.vision.member)
    shown = gpupool("chargeback", "show")
    assert shown.code == 0 and "difference" not in shown.out
    wrong = gpupool("chargeback", "show", "--month", "2001-13")
    assert wrong.code == 1 and "month is '2001-13'" in wrong.err
