"""Add the style guide, which exists in tests only, to the product's URL patterns."""

from django.urls import path

from config import urls
from portal.web.page.access import sign_in_required
from tests.portal.web.styleguide import styleguide

handler404 = urls.handler404
handler500 = urls.handler500

urlpatterns = [*urls.urlpatterns, path("styleguide/", sign_in_required(styleguide), name="styleguide")]
