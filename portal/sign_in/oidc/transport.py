"""Send requests to identity providers, and refuse answers that are not trusted or not JSON objects."""

from __future__ import annotations

import json
import ssl
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from portal.sign_in.oidc.providers import ProviderSettings
from portal.sign_in.oidc.refusals import SignInRefused

TIMEOUT_SECONDS = 5.0
MAX_ANSWER_BYTES = 1024 * 1024
READ_BYTES = 64 * 1024
USER_AGENT = "gpupool"


class _TrustedAdapter(HTTPAdapter):
    """An adapter that trusts the certificates of a provider in addition to the system's."""

    def __init__(self, certificates: str) -> None:
        self._context = ssl.create_default_context()
        self._context.load_verify_locations(cadata=certificates)
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make the pool of connections with the context of this adapter."""
        super().init_poolmanager(*args, **{**kwargs, "ssl_context": self._context})  # type: ignore[no-untyped-call]


def request_json(provider: ProviderSettings, method: str, url: str, **arguments: Any) -> tuple[int, Any]:
    """Send a request, and return the status and the JSON value of the answer.

    Redirects are not followed, so that a secret is sent only to the address of the provider. Raises
    SignInRefused if the provider cannot be reached, if its certificate is not trusted, or if the answer is
    too long or no JSON.
    """
    headers = {"User-Agent": USER_AGENT, "Accept": "application/json", **arguments.pop("headers", {})}
    try:
        with requests.Session() as session:
            if provider.ca_certificates:
                session.mount("https://", _TrustedAdapter(provider.ca_certificates))
            answer = session.request(
                method,
                url,
                headers=headers,
                timeout=TIMEOUT_SECONDS,
                allow_redirects=False,
                stream=True,
                **arguments,
            )
            body = b""
            for part in answer.iter_content(READ_BYTES):
                body += part
                if len(body) > MAX_ANSWER_BYTES:
                    raise SignInRefused("answer_too_long", name=provider.name, url=url)
            return answer.status_code, json.loads(body)
    except requests.exceptions.SSLError:
        raise SignInRefused("certificate_not_trusted", name=provider.name) from None
    except ssl.SSLError:
        raise SignInRefused("certificates_invalid", name=provider.name) from None
    except (requests.RequestException, OSError):
        raise SignInRefused("provider_unreachable", name=provider.name, url=url) from None
    except (ValueError, RecursionError):
        raise SignInRefused("answer_not_json", name=provider.name, url=url) from None
