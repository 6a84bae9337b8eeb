"""The style guide shows every component once; it is a page of the tests, not of the product."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import pytest
from django.conf import settings
from django.urls import NoReverseMatch, reverse
from pytest_django.fixtures import Settings

from portal.templatetags.gpupool import register
from tests.portal.web.work_samples import signed_in
from tests.world import World

HERE = Path(__file__).parent
SOURCES = sorted((HERE / "templates").glob("*.html"))
# Included by the base page or by another component, or a page of its own in the browser.
NOT_IN_THE_GUIDE = {
    "brand.html",
    "buttons.html",
    "filter_field.html",
    "mass_silence.html",
    "messages.html",
    "palette.html",
    "palette_results.html",
    "patterns.html",
}


@pytest.fixture
def styleguide_url(settings: Settings) -> str:
    """Serve the style guide for the test; return its URL."""
    templates = deepcopy(settings.TEMPLATES)
    templates[0]["DIRS"] = [*templates[0]["DIRS"], HERE / "templates"]
    settings.TEMPLATES = templates
    settings.ROOT_URLCONF = "tests.portal.web.styleguide_urls"
    return reverse("styleguide")


def test_the_style_guide_renders_for_every_role(world: World, styleguide_url: str, tmp_path: Path) -> None:
    for user in world.people.values():
        response = signed_in(user).get(styleguide_url)
        assert response.status_code == 200
    (tmp_path / "styleguide.html").write_bytes(response.content)  # to look at it: run with --basetemp


def test_the_style_guide_is_no_page_of_the_product() -> None:
    with pytest.raises(NoReverseMatch):
        reverse("styleguide")


def test_the_style_guide_uses_every_template_tag() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    unused = {
        name
        for name in {**register.tags, **register.filters}
        if not re.search(rf"{{%\s*{name}\b|\|{name}\b", source)
    }
    assert unused == set(), unused


def test_the_style_guide_uses_every_component() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    folder = Path(settings.BASE_DIR) / "templates" / "components"
    unused = {
        path.name
        for path in folder.glob("*.html")
        if f"components/{path.name}" not in source and not re.search(rf"{{%\s*{path.stem}\b", source)
    }
    assert unused == NOT_IN_THE_GUIDE
