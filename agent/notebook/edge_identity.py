"""Authenticates requests to a notebook server: only the edge may send requests.

The edge is the server process that forwards the requests of browsers. It first checks the user's access. It
then sends the request with a secret header, through a unix socket that no other user can open.

Jupyter's own token is not used for two reasons. It would appear in pages and in the environment of the
kernels, and it would disable the XSRF check.
"""

from __future__ import annotations

import hmac
from typing import Any

from jupyter_server.auth import IdentityProvider, User

SECRET_HEADER = "X-Gpupool-Secret"


class EdgeIdentityProvider(IdentityProvider):
    """An identity provider that accepts only requests with the run's secret. Their user is the owner."""

    # These values are set once at the start of the server. They are not traitlets, so that the secret never
    # appears when Jupyter prints its configuration.
    owner = "owner"
    secret = ""

    def get_user(self, handler: Any) -> User | None:
        """Return the owner if the request has the secret. Otherwise return None: the server answers 403."""
        secret = handler.request.headers.get(SECRET_HEADER, "")
        if not self.secret or not hmac.compare_digest(secret.encode(), self.secret.encode()):
            return None
        return User(username=self.owner, name=self.owner, display_name=self.owner)

    @property
    def auth_enabled(self) -> bool:
        return True

    @property
    def login_available(self) -> bool:
        return False

    @property
    def logout_available(self) -> bool:
        return False
