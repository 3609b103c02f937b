"""POST /jobs for a tenant whose waiting jobs are as many as they may be."""

from __future__ import annotations

from tests.api.caller import Caller, assert_problem, stored
from tests.factories import make_tenant


def test_s15_a_create_beyond_the_quota_is_429_with_a_time_to_wait_and_the_figures(owner):
    caller = Caller(make_tenant("limited", max_backlog=1))
    first = caller.create(request_key="a")
    assert first.status == 201
    before = stored()
    answer = caller.create()
    body = assert_problem(answer, 429, "backlog_quota")
    assert (body["limit"], body["used"]) == (1, 1)
    assert answer.headers["Retry-After"] == str(body["retry_after_seconds"])
    assert stored() == before
    replay = caller.create(request_key="a")
    assert (replay.status, replay.body["id"]) == (200, first.body["id"])
    assert owner.create().status == 201
