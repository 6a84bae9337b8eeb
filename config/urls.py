"""Define the URLs of the web process."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from config.account_adapter import email_page_disabled
from config.http.docs_access import for_docs_readers
from config.http.probes import healthz, readyz
from portal.api.fleet.metrics import MetricsView

handler404 = "config.http.error_responses.not_found"
handler500 = "config.http.error_responses.server_error"

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", MetricsView.as_view(), name="metrics"),
    path("accounts/email/", email_page_disabled),
    path("accounts/", include("allauth.urls")),
    path("api/schema/", for_docs_readers(SpectacularAPIView.as_view()), name="schema"),
    path(
        "api/docs/", for_docs_readers(SpectacularSwaggerSplitView.as_view(url_name="schema")), name="api-docs"
    ),
    path("api/v1/", include("portal.api.urls")),
    path("", include("portal.web.urls")),
]
