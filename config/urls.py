"""Define the URLs of the web process."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from config.account_adapter import email_page_disabled, provider_pages_disabled
from config.http.docs_access import for_docs_readers
from config.http.probes import healthz, readyz
from config.http.security_contact import security_txt
from portal.api.fleet.metrics import MetricsView
from portal.web.people.account import to_account
from portal.web.people.identity.break_glass import break_glass
from portal.web.people.identity.ldap import sign_in_with_directory
from portal.web.people.identity.oidc import provider_callback, sign_in_with_provider

handler404 = "config.http.error_responses.not_found"
handler500 = "config.http.error_responses.server_error"

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", MetricsView.as_view(), name="metrics"),
    path(".well-known/security.txt", security_txt, name="security-txt"),
    path("accounts/email/", email_page_disabled),
    path("accounts/3rdparty/", provider_pages_disabled),
    path("accounts/3rdparty/<path:page>", provider_pages_disabled),
    path("accounts/social/<path:page>", provider_pages_disabled),
    # These views replace those of allauth, which have the same addresses and names.
    path("accounts/oidc/<str:provider_id>/login/", sign_in_with_provider, name="openid_connect_login"),
    path(
        "accounts/oidc/<str:provider_id>/login/callback/", provider_callback, name="openid_connect_callback"
    ),
    path("accounts/ldap/<str:provider_id>/login/", sign_in_with_directory, name="directory-login"),
    path("accounts/break-glass/<str:code>/", break_glass, name="break-glass"),
    # The account page lists second factors.
    path("accounts/2fa/", to_account, {"section": "second-factor"}),
    path("accounts/2fa/webauthn/", to_account, {"section": "second-factor"}),
    path("accounts/", include("allauth.urls")),
    path("api/schema/", for_docs_readers(SpectacularAPIView.as_view()), name="schema"),
    path(
        "api/docs/", for_docs_readers(SpectacularSwaggerSplitView.as_view(url_name="schema")), name="api-docs"
    ),
    path("api/v1/", include("portal.api.urls")),
    path("", include("portal.web.urls")),
]
