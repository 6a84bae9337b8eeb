"""The web process as it is run, but for its patience with who sends slowly."""

from __future__ import annotations

from config.asgi import application as as_it_is_run
from config.body_limit import BodyLimit
from config.heads import Heads

PATIENCE_SECONDS = 1.5

application = BodyLimit(as_it_is_run.app, as_it_is_run.most, patience=PATIENCE_SECONDS)


class ImpatientHeads(Heads):
    """With less time for a head."""

    seconds = PATIENCE_SECONDS
