"""Which sets of MIG profiles fit on a GPU, and where."""

from __future__ import annotations

import itertools

import pytest

from scheduler.core.fit.mig_layout import (
    MigInstancePlacement,
    MigLayoutProblem,
    MigProfileSpec,
    layout_text,
    place_instances,
)

# An H100 with 80 GB, as NVIDIA's MIG user guide lists it: compute slices, how many at most, memory slices, starts.
H100 = {
    one.name: one
    for one in (
        MigProfileSpec("1g.10gb", 1, 7, 1, (0, 1, 2, 3, 4, 5, 6)),
        MigProfileSpec("1g.20gb", 1, 4, 2, (0, 2, 4, 6)),
        MigProfileSpec("2g.20gb", 2, 3, 2, (0, 2, 4)),
        MigProfileSpec("3g.40gb", 3, 2, 4, (0, 4)),
        MigProfileSpec("4g.40gb", 4, 1, 4, (0,)),
        MigProfileSpec("7g.80gb", 7, 1, 8, (0,)),
    )
}


@pytest.mark.parametrize(
    ("wanted", "starts"),
    [
        ([], []),
        (["7g.80gb"], [0]),
        (["3g.40gb", "3g.40gb"], [0, 4]),
        (["4g.40gb", "3g.40gb"], [0, 4]),
        (["1g.10gb"] * 7, [0, 1, 2, 3, 4, 5, 6]),
        (["2g.20gb"] * 3 + ["1g.10gb"], [0, 2, 4, 6]),
        (["1g.10gb"] * 4 + ["3g.40gb"], [0, 1, 2, 3, 4]),  # only with the large one at the end
        (["1g.20gb"] * 4, [0, 2, 4, 6]),
    ],
)
def test_what_fits_has_places_beside_each_other(wanted: list[str], starts: list[int]) -> None:
    found = place_instances(wanted, H100)
    assert not isinstance(found, MigLayoutProblem)
    assert sorted(part.profile for part in found) == sorted(wanted)
    assert [part.start for part in found] == starts


@pytest.mark.parametrize(
    ("wanted", "misfit"),
    [
        (["5g.60gb"], MigLayoutProblem("unknown", "5g.60gb")),
        (["3g.40gb"] * 3, MigLayoutProblem("most", "3g.40gb", 3, 2)),
        (["4g.40gb", "3g.40gb", "1g.10gb"], MigLayoutProblem("slices", "", 8, 7)),
        (
            ["3g.40gb", "3g.40gb", "1g.10gb"],
            MigLayoutProblem("places"),
        ),  # 7 compute slices, and no memory left
        (["2g.20gb", "2g.20gb", "2g.20gb", "1g.20gb"], None),
        (["7g.80gb", "1g.10gb"], MigLayoutProblem("slices", "", 8, 7)),
    ],
)
def test_what_does_not_fit_says_why(wanted: list[str], misfit: MigLayoutProblem | None) -> None:
    found = place_instances(wanted, H100)
    assert (found if isinstance(found, MigLayoutProblem) else None) == misfit


def test_the_search_finds_a_place_exactly_when_there_is_one() -> None:
    """Compared with trying every combination of starts."""
    for count in range(1, 5):
        for wanted in itertools.combinations_with_replacement(sorted(H100), count):
            if isinstance(found := place_instances(wanted, H100), MigLayoutProblem) and found.why != "places":
                continue
            possible = any(
                len(
                    {
                        n
                        for name, at in zip(wanted, starts, strict=True)
                        for n in range(at, at + H100[name].size)
                    }
                )
                == sum(H100[name].size for name in wanted)
                for starts in itertools.product(*(H100[name].starts for name in wanted))
            )
            assert isinstance(found, tuple) == possible, wanted


def test_where_the_driver_tells_no_places_it_chooses_them_the_largest_first() -> None:
    offered = {name: MigProfileSpec(name, one.slices, one.most) for name, one in H100.items()}
    assert place_instances(["1g.10gb", "3g.40gb"], offered) == (
        MigInstancePlacement("3g.40gb", None),
        MigInstancePlacement("1g.10gb", None),
    )


def test_a_geometry_is_named_shortly() -> None:
    assert layout_text(["1g.10gb", "3g.40gb", "1g.10gb"]) == "1x3g.40gb+2x1g.10gb"
    assert layout_text([]) == ""
