"""Provide the shared organisation as of now, and API clients that authenticate with a token."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from rest_framework.test import APIClient

from portal.models import User
from portal.services.people import api_tokens
from tests.world import World, build_world

Client = Callable[[User], APIClient]


@pytest.fixture
def today_world(db: None) -> World:
    """Return the shared organisation as of now, because the API reads the clock."""
    return build_world(datetime.now(UTC))


@pytest.fixture
def client_of() -> Client:
    """Return a function that creates a client with a token of the user."""

    def make(user: User) -> APIClient:
        _, text = api_tokens.create_token(actor=user, name="test", now=datetime.now(UTC))
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
        return client

    return make
