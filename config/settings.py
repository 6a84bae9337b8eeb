"""Define the Django settings. Values that differ between installations come from config.environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from config import logging_setup
from config.environment import LOG_MAIL_BACKEND, InvalidSettingError, read_environment
from portal.wording.people.account_texts import LINK_DAYS

try:
    ENVIRONMENT = read_environment(os.environ)
except InvalidSettingError as problem:
    # Operators read this message, so it is one line without a traceback.
    raise SystemExit(str(problem)) from None

BASE_DIR = Path(__file__).resolve().parent.parent
IS_TEST = ENVIRONMENT.environment == "test"

# --- gpupool's own settings, for django.conf.settings -------------------------------------------------------
GPUPOOL_ENVIRONMENT = ENVIRONMENT.environment
GPUPOOL_PORTAL_URL = ENVIRONMENT.portal_url
GPUPOOL_EDGE_URL = ENVIRONMENT.edge_url
GPUPOOL_NOTEBOOK_DOMAIN = ENVIRONMENT.notebook_domain
GPUPOOL_STATE = ENVIRONMENT.state
GPUPOOL_EDGE_METRICS_PORT = ENVIRONMENT.edge_metrics_port
GPUPOOL_AUDIT_STREAM = ENVIRONMENT.audit_stream
GPUPOOL_AUDIT_STREAM_TOKEN = ENVIRONMENT.audit_stream_token
GPUPOOL_ENCRYPTION_KEYS = ENVIRONMENT.encryption_keys
GPUPOOL_API_DOCS = ENVIRONMENT.api_docs
GPUPOOL_EDGE_STANDBY = ENVIRONMENT.edge_standby
GPUPOOL_PROBE_PORT = ENVIRONMENT.probe_port
GPUPOOL_BACKUPS = ENVIRONMENT.backups
GPUPOOL_CERTIFICATES = ENVIRONMENT.certificates
GPUPOOL_LEASE_SECONDS = ENVIRONMENT.lease_seconds
GPUPOOL_EDGE_CONNECTIONS = ENVIRONMENT.edge_connections
GPUPOOL_EDGE_CONNECTIONS_PER_ADDRESS = ENVIRONMENT.edge_connections_per_address
GPUPOOL_FIRST_TEAM_USER = ENVIRONMENT.first_team_user
GPUPOOL_FIRST_PERSON_ID = ENVIRONMENT.first_person_id
GPUPOOL_RECORDING_HOURS = ENVIRONMENT.recording_hours
GPUPOOL_RECORDING_MIB = ENVIRONMENT.recording_mib
GPUPOOL_DECISION_DAYS = ENVIRONMENT.decision_days
GPUPOOL_NOTICE_DAYS = ENVIRONMENT.notice_days
GPUPOOL_HEALTH_EVENT_DAYS = ENVIRONMENT.health_event_days
GPUPOOL_LOG_DAYS = ENVIRONMENT.log_days
GPUPOOL_STATEMENT_KEY = ENVIRONMENT.statement_key
GPUPOOL_LINE_LENGTH = ENVIRONMENT.line_length
GPUPOOL_TRUSTED_PROXIES = ENVIRONMENT.trusted_proxies
GPUPOOL_NOTICE_NETWORKS = ENVIRONMENT.notice_networks
GPUPOOL_APPROVAL_REMINDER_HOURS = ENVIRONMENT.approval_reminder_hours
GPUPOOL_OIDC = ENVIRONMENT.oidc
GPUPOOL_SECURITY_CONTACT = ENVIRONMENT.security_contact
GPUPOOL_IDENTITY_PROVIDERS = ENVIRONMENT.identity_providers
REDIS_URL = ENVIRONMENT.redis_url
# Path of the Celery application. Lower packages send tasks to it, but may not import config.
GPUPOOL_TASK_QUEUE = "config.celery.app"

# --- applications -------------------------------------------------------------------------------------------
INSTALLED_APPS = [
    "config.apps.ProjectAppConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "rules.apps.RulesConfig",
    "django_htmx",
    "scheduler.apps.SchedulerConfig",
    "telemetry.apps.TelemetryConfig",
    "portal.apps.PortalConfig",
    "demo.apps.DemoConfig",
]

MIDDLEWARE = [
    "config.http.security.reject_nul_characters",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "config.http.security.add_content_security_policy",
    "config.http.clock_check.check_clock_before_writes",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "portal.web.page.second_factor_gate.second_factor_gate",
    "portal.web.page.middleware.viewer_settings_middleware",
]

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "config.http.security.csp_nonce",
                "portal.web.page.context_processors.page_frame",
            ],
        },
    },
]

# --- database and cache -------------------------------------------------------------------------------------
# PostgreSQL ends idle transactions, so that a process that was stopped cannot hold a lock forever.
DATABASE_SESSION = "-c idle_in_transaction_session_timeout=30000 -c timezone=UTC"
DATABASES = {
    "default": {
        "ENGINE": "config.postgres",  # Django's backend with a pool that reconnects quickly
        **ENVIRONMENT.database,
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            **ENVIRONMENT.database["OPTIONS"],
            "options": DATABASE_SESSION,
            "connect_timeout": 5,
            # A vanished server, or a firewall that dropped the connection, is detected within half a minute.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        },
        # POOL is not inside OPTIONS. Celery would find it there and create a new pool for each task.
        "POOL": {"min_size": 1, "max_size": 12, "timeout": 10, "max_idle": 60},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": ENVIRONMENT.redis_url,
        "KEY_PREFIX": "gpupool",
    }
}

# --- people -------------------------------------------------------------------------------------------------
AUTH_USER_MODEL = "portal.User"
AUTHENTICATION_BACKENDS = [
    "rules.permissions.ObjectPermissionBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
if IS_TEST:
    # Tests sign in hundreds of times, so they use a fast hash.
    PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "config.account_adapter.LocalAccountAdapter"
SOCIALACCOUNT_ADAPTER = "config.social_adapter.PortalSocialAdapter"
SOCIALACCOUNT_EMAIL_VERIFICATION = "none"
SOCIALACCOUNT_REQUESTS_TIMEOUT = 5
ACCOUNT_EMAIL_SUBJECT_PREFIX = "[gpupool] "
ACCOUNT_FORMS = {
    "login": "portal.web.people.sign_in_form.SignInForm",
    "change_password": "portal.web.people.sign_in_form.ChangeOwnPasswordForm",
    "reset_password": "portal.web.people.sign_in_form.RequestPasswordLinkForm",
    "reset_password_from_key": "portal.web.people.sign_in_form.SetPasswordByLinkForm",
}
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_SESSION_REMEMBER = False
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_PREVENT_ENUMERATION = True
# portal/redis_state/sign_in_attempts.py limits passwords and codes of second factors.
ACCOUNT_RATE_LIMITS = {"login": "", "login_failed": ""}
PASSWORD_RESET_TIMEOUT = LINK_DAYS * 24 * 3600  # seconds; the lifetime of one-time links for passwords
MFA_FORMS = {
    "authenticate": "portal.web.people.sign_in_form.SecondFactorForm",
    "reauthenticate": "portal.web.people.sign_in_form.ConfirmSecondFactorForm",
    "add_webauthn": "portal.web.people.sign_in_form.NewPasskeyForm",
    "login_webauthn": "portal.web.people.sign_in_form.PasskeySignInForm",
    "activate_totp": "portal.web.people.sign_in_form.TurnOnSecondFactorForm",
    "deactivate_totp": "portal.web.people.sign_in_form.TurnOffSecondFactorForm",
    "generate_recovery_codes": "portal.web.people.sign_in_form.NewRecoveryCodesForm",
}
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_ADAPTER = "portal.sign_in.second_factor_adapter.SecondFactorAdapter"
# Browsers offer passkeys on http://localhost, and otherwise only over HTTPS. The server checks the same.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = GPUPOOL_PORTAL_URL.startswith("http://localhost:")

# --- API ----------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_VERSIONING_CLASS": None,
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "gpupool",
    "DESCRIPTION": "Run all GPUs of an organisation as one shared pool.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",  # so each operation has the tag of its resource, such as jobs
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "docExpansion": "none"},  # the list of resources first
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [],  # enums stay inline: generated names would collide
}

# --- static files -------------------------------------------------------------------------------------------
STATIC_URL = "/static/"
STATIC_ROOT = ENVIRONMENT.state / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "config.static_files.PlotlyFinder",
]
STATICFILES_STORAGE_CLASS = (
    "django.contrib.staticfiles.storage.StaticFilesStorage"
    if IS_TEST
    else "whitenoise.storage.CompressedManifestStaticFilesStorage"
)
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": STATICFILES_STORAGE_CLASS},
}
WHITENOISE_USE_FINDERS = IS_TEST
# In tests, look up each static file on request. Listing all files would take 8 ms for each test client.
WHITENOISE_AUTOREFRESH = IS_TEST

# --- browsers and transport ---------------------------------------------------------------------------------
SECRET_KEY = ENVIRONMENT.secret_key
DEBUG = False
ALLOWED_HOSTS = ENVIRONMENT.allowed_hosts
CSRF_TRUSTED_ORIGINS = [ENVIRONMENT.portal_url]
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 12 * 3600
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_NAME = "gpupool_session"
CSRF_COOKIE_NAME = "gpupool_csrf"
if ENVIRONMENT.secure:
    SESSION_COOKIE_NAME = "__Host-gpupool_session"
    CSRF_COOKIE_NAME = "__Host-gpupool_csrf"
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
    SECURE_SSL_REDIRECT = True
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    # The web process listens on loopback behind the TLS proxy of deploy/, which sets this header.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    # Probes come from this machine and bypass the proxy.
    SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$"]

DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 500

# --- language, time, mail, logs -----------------------------------------------------------------------------
LANGUAGE_CODE = "en-gb"
USE_I18N = False
USE_TZ = True
TIME_ZONE = ENVIRONMENT.time_zone

vars().update(ENVIRONMENT.email)
GPUPOOL_HAS_MAIL_SERVER = ENVIRONMENT.email.get("EMAIL_BACKEND") != LOG_MAIL_BACKEND
DEFAULT_FROM_EMAIL = ENVIRONMENT.mail_from
SERVER_EMAIL = ENVIRONMENT.mail_from

LOGGING_CONFIG = None
logging_setup.configure_logging(ENVIRONMENT.log_level, ENVIRONMENT.log_format)
