"""The examples in the docstrings of the policies, and of what is as pure, are true."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

from jobs import policies
from workers import importing

MODULES = sorted(
    f"jobs.policies.{module.name}" for module in pkgutil.iter_modules(policies.__path__)
)

PURE = sorted(
    f"workers.importing.{module.name}" for module in pkgutil.iter_modules(importing.__path__)
)

WITHOUT = {"jobs.policies.tokens"}  # what it makes is random


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_policy_give_what_they_show(name):
    failed, tried = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0  # the differences are in the captured output
    assert tried > 0 or name in WITHOUT, "a policy carries two or three examples"


def test_examples_of_imports_give_what_they_show():
    results = [doctest.testmod(import_module(name)) for name in PURE]
    assert sum(one.failed for one in results) == 0
    assert sum(one.attempted for one in results) >= 6
