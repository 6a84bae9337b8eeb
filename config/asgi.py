"""Define the ASGI application of the web process, `config.asgi:application`."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from django.conf import settings

from config.http.body_limit import BodyLimitMiddleware
from config.http.process_report import ProcessReportMiddleware

limited_application = BodyLimitMiddleware(get_asgi_application(), settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
application = ProcessReportMiddleware(limited_application)
