"""What an API needs to accept jobs: a handler that some worker advertised, and a pool."""

from __future__ import annotations

import pytest

from tests.api.caller import Caller
from tests.factories import make_handler, make_pool, make_tenant


@pytest.fixture
def owner(db) -> Caller:
    """Of tenant acme, with every scope."""
    make_handler()
    make_pool()
    return Caller()


@pytest.fixture
def committed_owner(committed) -> Caller:
    """As `owner`, with real commits: for tests in which other connections look or write."""
    make_handler()
    make_pool()
    return Caller()


@pytest.fixture
def stranger(owner) -> Caller:
    """Of another tenant, with every scope."""
    return Caller(make_tenant("globex"))


@pytest.fixture
def viewer(owner) -> Caller:
    """Of tenant acme, may look at jobs but not at payloads."""
    return Caller(scopes=["jobs:read"])
