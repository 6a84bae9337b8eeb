"""Test that browsers keep the chart library for ever, because its address changes with its content."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles.finders import find
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.files import File
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.test import RequestFactory
from whitenoise.middleware import WhiteNoiseMiddleware

LIBRARY = "plotly/plotly.min.js"
FILES = (LIBRARY, "charts.css", "charts.js")


def no_page(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=404)


@pytest.fixture
def collected(tmp_path: Path, settings: Any) -> None:
    """Collect the files of the charts as on a server, into a folder of this test."""
    settings.STATIC_ROOT = str(tmp_path)
    settings.WHITENOISE_USE_FINDERS = settings.WHITENOISE_AUTOREFRESH = False
    settings.STORAGES = settings.STORAGES | {
        # Without the compression of the server, which takes seconds.
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}
    }
    for name in FILES:
        with open(find(name), "rb") as file:
            staticfiles_storage.save(name, File(file))
    paths = {name: (staticfiles_storage, name) for name in FILES}
    for _, _, processed in staticfiles_storage.post_process(paths):
        if isinstance(processed, Exception):
            raise processed


def served(address: str) -> Any:
    return WhiteNoiseMiddleware(no_page)(RequestFactory().get(address))


@pytest.mark.usefixtures("collected")
def test_the_chart_library_has_an_address_of_its_content_and_is_cached_for_ever() -> None:
    html = render_to_string("components/plotly_scripts.html")
    found = re.search(r'data-plotly="(/static/plotly/plotly\.min\.[0-9a-f]{12}\.js)"', html)
    assert found is not None, html
    answer = served(found.group(1))
    assert answer.status_code == 200
    assert answer["Cache-Control"] == "max-age=315360000, public, immutable"
    plain = served(f"/static/{LIBRARY}")  # its content may change
    assert "immutable" not in plain["Cache-Control"]
