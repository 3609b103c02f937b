"""The examples in the docstrings of the policies are true."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

from jobs import policies

MODULES = sorted(
    f"jobs.policies.{module.name}" for module in pkgutil.iter_modules(policies.__path__)
)

WITHOUT = {"jobs.policies.tokens"}  # what it makes is random


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_policy_give_what_they_show(name):
    failed, tried = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0  # the differences are in the captured output
    assert tried > 0 or name in WITHOUT, "a policy carries two or three examples"
