"""People at the console: a member of staff, an administrator, and one who is neither."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.fixtures import Settings


def signed_in(name: str, **rights: bool) -> Client:
    user = User.objects.create_user(name)  # no password: hashing one takes longer than most tests
    for right, value in rights.items():
        setattr(user, right, value)
    user.save()
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def quick_passwords(settings: Settings) -> None:
    """A hash that costs nothing: half a second for each password that is stored or checked proves nothing here."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def staff(db: None) -> Client:
    return signed_in("anna", is_staff=True)


@pytest.fixture
def visitor(db: None) -> Client:
    return signed_in("vera")
