"""Test MIG layouts: which sets of profiles fit on a GPU, and at which starts."""

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

# H100 80GB in NVIDIA's MIG user guide: compute slices, maximum number, memory slices, starts.
H100 = {
    spec.name: spec
    for spec in (
        MigProfileSpec("1g.10gb", 1, 7, 1, (0, 1, 2, 3, 4, 5, 6)),
        MigProfileSpec("1g.20gb", 1, 4, 2, (0, 2, 4, 6)),
        MigProfileSpec("2g.20gb", 2, 3, 2, (0, 2, 4)),
        MigProfileSpec("3g.40gb", 3, 2, 4, (0, 4)),
        MigProfileSpec("4g.40gb", 4, 1, 4, (0,)),
        MigProfileSpec("7g.80gb", 7, 1, 8, (0,)),
    )
}


@pytest.mark.parametrize(
    ("profiles", "starts"),
    [
        ([], []),
        (["7g.80gb"], [0]),
        (["3g.40gb", "3g.40gb"], [0, 4]),
        (["4g.40gb", "3g.40gb"], [0, 4]),
        (["1g.10gb"] * 7, [0, 1, 2, 3, 4, 5, 6]),
        (["2g.20gb"] * 3 + ["1g.10gb"], [0, 2, 4, 6]),
        (["1g.10gb"] * 4 + ["3g.40gb"], [0, 1, 2, 3, 4]),  # fits only with the large instance at the end
        (["1g.20gb"] * 4, [0, 2, 4, 6]),
    ],
)
def test_profiles_that_fit_get_starts_without_overlap(profiles: list[str], starts: list[int]) -> None:
    layout = place_instances(profiles, H100)
    assert not isinstance(layout, MigLayoutProblem)
    assert sorted(part.profile for part in layout) == sorted(profiles)
    assert [part.start for part in layout] == starts


@pytest.mark.parametrize(
    ("profiles", "problem"),
    [
        (["5g.60gb"], MigLayoutProblem("unknown", "5g.60gb")),
        (["3g.40gb"] * 3, MigLayoutProblem("most", "3g.40gb", 3, 2)),
        (["4g.40gb", "3g.40gb", "1g.10gb"], MigLayoutProblem("slices", "", 8, 7)),
        (
            ["3g.40gb", "3g.40gb", "1g.10gb"],
            MigLayoutProblem("places"),
        ),  # 7 compute slices, but too little memory
        (["2g.20gb", "2g.20gb", "2g.20gb", "1g.20gb"], None),
        (["7g.80gb", "1g.10gb"], MigLayoutProblem("slices", "", 8, 7)),
    ],
)
def test_profiles_that_do_not_fit_are_refused_with_the_problem(
    profiles: list[str], problem: MigLayoutProblem | None
) -> None:
    layout = place_instances(profiles, H100)
    assert (layout if isinstance(layout, MigLayoutProblem) else None) == problem


def test_the_search_finds_a_layout_exactly_if_one_exists() -> None:
    """Compare the result with a search over every combination of starts."""
    for count in range(1, 5):
        for profiles in itertools.combinations_with_replacement(sorted(H100), count):
            if (
                isinstance(layout := place_instances(profiles, H100), MigLayoutProblem)
                and layout.why != "places"
            ):
                continue
            possible = any(
                len(
                    {
                        n
                        for name, at in zip(profiles, starts, strict=True)
                        for n in range(at, at + H100[name].size)
                    }
                )
                == sum(H100[name].size for name in profiles)
                for starts in itertools.product(*(H100[name].starts for name in profiles))
            )
            assert isinstance(layout, tuple) == possible, profiles


def test_without_known_starts_the_largest_profile_comes_first_and_the_driver_chooses() -> None:
    specs = {name: MigProfileSpec(name, spec.slices, spec.most) for name, spec in H100.items()}
    assert place_instances(["1g.10gb", "3g.40gb"], specs) == (
        MigInstancePlacement("3g.40gb", None),
        MigInstancePlacement("1g.10gb", None),
    )


def test_a_layout_has_a_short_text() -> None:
    assert layout_text(["1g.10gb", "3g.40gb", "1g.10gb"]) == "1x3g.40gb+2x1g.10gb"
    assert layout_text([]) == ""
