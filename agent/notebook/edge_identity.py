"""Who may speak to a notebook server: only the edge, which has already asked the portal whether this person may.

It proves itself with a secret header over a unix socket that nobody else can open. Jupyter's own token is not used: it would
show in pages and in the kernels' environment, and it switches the XSRF check off.
"""

from __future__ import annotations

import hmac
from typing import Any

from jupyter_server.auth import IdentityProvider, User

SECRET_HEADER = "X-Gpupool-Secret"


class EdgeIdentityProvider(IdentityProvider):
    """Accepts requests that carry the run's secret, as the owner, and no other."""

    # Set once at the start of the server; not configurable, so they are in no configuration dump.
    owner = "owner"
    secret = ""

    def get_user(self, handler: Any) -> User | None:
        """The owner, or None: then the server answers 403."""
        given = handler.request.headers.get(SECRET_HEADER, "")
        if not self.secret or not hmac.compare_digest(given.encode(), self.secret.encode()):
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
