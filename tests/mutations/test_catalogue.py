"""The catalogue of faults keeps up with the code: texts that are there, tests that exist, names that differ."""

from __future__ import annotations

import ast
import re

import pytest

from tests.mutations.__main__ import FAILED
from tests.mutations.catalogue import MUTATIONS, ROOT, Change, Mutation

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}


def test_every_fault_has_a_name_of_its_own():
    assert len(BY_NAME) == len(MUTATIONS)


@pytest.mark.parametrize("mutation", BY_NAME.values(), ids=BY_NAME)
def test_a_fault_replaces_text_that_stands_there_once_and_leaves_python(mutation: Mutation):
    assert mutation.changes
    for change in mutation.changes:
        changed = change.applied(ROOT)
        assert changed != (ROOT / change.file).read_text()
        ast.parse(changed)


@pytest.mark.parametrize("mutation", BY_NAME.values(), ids=BY_NAME)
def test_the_tests_that_must_notice_exist(mutation: Mutation):
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert re.search(rf"^def {name or 'test_'}", text, re.MULTILINE), test


def test_a_text_that_is_gone_or_stands_twice_is_refused(tmp_path):
    (tmp_path / "some.py").write_text("one\ntwo\ntwo\n")
    assert Change("some.py", "one", "three").applied(tmp_path) == "three\ntwo\ntwo\n"
    for old in ("two", "four"):
        with pytest.raises(ValueError, match=r"some\.py has [02] times"):
            Change("some.py", old, "x").applied(tmp_path)


def test_the_first_failed_test_is_read_from_the_output():
    output = ".F\nFAILED tests/a.py::test_b[c d] - assert 1 == 2\nERROR tests/e.py::test_f\n"
    assert FAILED.findall(output) == ["tests/a.py::test_b[c d]", "tests/e.py::test_f"]
