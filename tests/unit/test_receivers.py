"""The receivers of the tests keep their own rule, across instances, threads and processes."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.receivers import ApplyOnce, Fencing, Naive

JOB, OTHER = UUID(int=1), UUID(int=2)
ROOT = Path(__file__).resolve().parents[2]
DELIVERS = """
import sys, pathlib, uuid
from tests.support.receivers import ApplyOnce
receiver = ApplyOnce(pathlib.Path(sys.argv[1]))
for n in range(25):
    receiver.deliver(f"acme/{n}", uuid.UUID(int=n), 1)
"""


@pytest.fixture
def log(tmp_path):
    return tmp_path / "receiver.ndjson"


def test_an_apply_once_receiver_applies_the_first_of_each_idempotency_token(log):
    one, two = ApplyOnce(log), ApplyOnce(log)
    assert one.deliver("acme/a", JOB, 1)
    assert not two.deliver("acme/a", JOB, 2)
    assert not one.deliver("acme/a", JOB, 3)
    assert two.deliver("acme/b", OTHER, 1)
    assert [made.applied for made in one.deliveries(JOB)] == [True, False, False]


def test_a_fencing_receiver_refuses_a_token_smaller_than_one_it_has_seen(log):
    one, two = Fencing(log), Fencing(log)
    assert one.deliver("acme/a", JOB, 2)
    assert not two.deliver("acme/a", JOB, 1)
    assert two.deliver("acme/a", JOB, 2)
    assert one.deliver("acme/a", JOB, 3)
    assert one.deliver("acme/b", OTHER, 1)
    assert not two.deliver("acme/a", JOB, 2)


def test_a_naive_receiver_applies_whatever_comes(log):
    naive = Naive(log)
    assert all(naive.deliver("acme/a", JOB, token) for token in (2, 1, 2))


def test_the_log_has_one_line_of_json_a_delivery(log):
    ApplyOnce(log).deliver("acme/a", JOB, 1)
    (line,) = log.read_text().splitlines()
    said = json.loads(line)
    assert datetime.fromisoformat(said.pop("at")).tzinfo is not None
    assert said == {"token": "acme/a", "job": str(JOB), "lease_token": 1, "applied": True}


def test_threads_of_one_receiver_and_of_many_apply_once_together(log):
    receivers = [ApplyOnce(log), ApplyOnce(log)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: receivers[n % 2].deliver("acme/a", JOB, n), range(200)))
    assert sum(made) == 1
    assert len(receivers[0].deliveries()) == 200


def test_processes_apply_once_together(log):
    children = [
        subprocess.Popen([sys.executable, "-c", DELIVERS, str(log)], cwd=ROOT) for _ in range(3)
    ]
    assert {child.wait() for child in children} == {0}
    made = ApplyOnce(log).deliveries()
    assert len(made) == 75
    assert sorted(one.job.int for one in made if one.applied) == list(range(25))
