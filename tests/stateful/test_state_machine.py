"""Random stories against a model: whatever happens in whatever order, every answer, row and event is the expected one.

An ordinary run tells 200 stories of 50 steps. A longer one, or another one:
`STATEFUL_EXAMPLES=2000 STATEFUL_SEED=7 uv run pytest tests/stateful`. The seed is in the name of the test.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.stateful import run_state_machine_as_test

from jobs.conf import conf
from jobs.models import Route
from jobs.policies.routing import canonical_labels
from jobs.states import EventKind
from tests.factories import make_handler, make_pool
from tests.stateful.machine import EngineMachine
from tests.stateful.model import LEASE_TTL, PUBLISH_TTL, TOLERANCE
from tests.stateful.seam import Seam
from tests.stateful.world import KINDS

EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES") or 200)
SEED = int(os.environ.get("STATEFUL_SEED") or 1)
SHRINK = os.environ.get("STATEFUL_SHRINK") != "0"
STEPS = 50

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600 + EXAMPLES),  # the search for the shortest story included
]


class Fresh(HypothesisProvider):
    """The usual random choices, under a name of its own: so Hypothesis makes each story anew.

    Of those by its default provider five in six are pieces of an earlier one, put together in another way.
    """


AVAILABLE_PROVIDERS["fresh"] = Fresh
RUN = settings(
    settings.get_profile("ci"),
    backend="fresh",
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    phases=[phase for phase in Phase if SHRINK or phase is not Phase.shrink],
)


@pytest.fixture
def seam(committed, settings, monkeypatch):
    """Pools, handlers and routes, which the stories share; pages of two, so that every sweep goes through several."""
    settings.JOBS = {
        **settings.JOBS,
        "lease_ttl_seconds": LEASE_TTL,
        "heartbeat_seconds": LEASE_TTL / 3,
        "publish_ttl_seconds": PUBLISH_TTL,
        "clock_tolerance_seconds": TOLERANCE,
        "reap_batch": 2,
    }
    conf.cache_clear()
    make_pool("plain")
    # Exclusive: the model knows nothing of slots that are lent.
    make_pool("gpu", labels={"gpu": "a100", "region": "eu"}, exclusive_labels={"gpu": "a100"})
    for kind in KINDS.values():
        make_handler(kind["handler"])
        labels = kind.get("labels", {})
        Route.objects.create(
            handler=kind["handler"], labels=labels, labels_text=canonical_labels(labels)
        )
    return Seam(monkeypatch)


@pytest.mark.parametrize("number", [pytest.param(SEED, id=f"seed {SEED}, {EXAMPLES} examples")])
def test_i1_i2_i3_i4_i5_i6_i7_i9_i10_i11_i12_i18_i19_hold_whatever_happens(seam, number):
    reached: Counter[str] = Counter()

    @seed(number)
    class Machine(EngineMachine):
        def __init__(self) -> None:
            super().__init__(seam, reached)

    run_state_machine_as_test(Machine, settings=RUN)
    rare = {kind: reached[kind] for kind in EventKind if reached[kind] < EXAMPLES // 20}
    assert not rare, f"too few of {rare} for this to prove anything: {reached}"
