"""Test that the style guide shows every component. It exists in tests only, not in the product."""

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
COMPONENTS = Path(settings.BASE_DIR) / "templates" / "components"
# Pages include these components directly. Exception: the server returns palette_results alone, for the open
# palette.
NOT_IN_THE_GUIDE = {
    *("brand", "import_file", "import_report", "maintenance_banner", "mass_silence", "messages", "palette"),
    *("palette_results", "patterns"),
}


@pytest.fixture
def styleguide_url(settings: Settings) -> str:
    """Serve the style guide for the test; return its URL."""
    templates = deepcopy(settings.TEMPLATES)
    templates[0]["DIRS"] = [*templates[0]["DIRS"], HERE / "templates"]
    settings.TEMPLATES = templates
    settings.ROOT_URLCONF = "tests.portal.web.styleguide_urls"
    return reverse("styleguide")


OTHER_ROLES = ("lead", "operator", "finance", "auditor", "team mate", "other team", "stranger")


@pytest.mark.parametrize("roles", [("member",), pytest.param(OTHER_ROLES, marks=pytest.mark.long)])
def test_the_style_guide_renders_for_every_role(
    world: World, styleguide_url: str, tmp_path: Path, roles: tuple[str, ...]
) -> None:
    for role in roles:
        response = signed_in(world.people[role]).get(styleguide_url)
        assert response.status_code == 200
    (tmp_path / "styleguide.html").write_bytes(response.content)  # run with --basetemp to view it


def test_the_product_does_not_serve_the_style_guide() -> None:
    with pytest.raises(NoReverseMatch):
        reverse("styleguide")


def _used_names() -> set[str]:
    """Return the tags, filters and components that the style guide uses, directly or through components."""
    sources = [*(HERE / "templates").glob("*.html"), *COMPONENTS.glob("*.html")]
    text = "".join(
        re.sub(r"{% comment %}.*?{% endcomment %}", "", path.read_text(), flags=re.DOTALL) for path in sources
    )
    tags = re.findall(r"{%\s*(\w+)|\|(\w+)|components/(\w+)\.html", text)
    return {name for found in tags for name in found}


def test_the_style_guide_uses_every_template_tag() -> None:
    assert set(register.tags) - _used_names() == set()


def test_the_style_guide_uses_every_component() -> None:
    unused = {path.stem for path in COMPONENTS.glob("*.html")} - _used_names()
    assert unused == NOT_IN_THE_GUIDE
