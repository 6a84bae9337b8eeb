"""Configure the structured logs of every process: one line for each event, as text or as JSON."""

from __future__ import annotations

import logging
import logging.config

import structlog

from config.secrets_in_logs import hide_secrets


def configure_logging(level: str, log_format: str) -> None:
    """Send the records of structlog and of the standard library to stderr in one format.

    ``log_format`` is "text" or "json".
    """
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    )
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "line": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": shared,
                    "processors": [
                        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                        *(
                            [structlog.processors.format_exc_info, hide_secrets]
                            if log_format == "json"
                            else []
                        ),
                        renderer,
                    ],
                }
            },
            "handlers": {
                "stderr": {"class": "config.repeated_lines.RateLimitedHandler", "formatter": "line"}
            },
            "root": {"handlers": ["stderr"], "level": level.upper()},
            "loggers": {
                # At level info, lines of every request and periodic task would hide the important lines.
                "uvicorn.access": {"level": "WARNING"},
                "celery.worker.strategy": {"level": "WARNING"},
                "celery.app.trace": {"level": "WARNING"},
                "celery.beat": {"level": "WARNING"},
                "aiohttp.access": {"level": "WARNING"},
            },
        }
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
