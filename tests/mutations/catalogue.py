"""Faults that somebody could write into the engine, and the tests that must notice each.

A change names its old text exactly. When that code moves on, the list fails until it follows; it cannot rot.
"""

from __future__ import annotations

from tests.mutations.changes import ROOT, Change, Mutation, mutation
from tests.mutations.schedules import SCHEDULE_MUTATIONS

__all__ = ["MUTATIONS", "ROOT", "Change", "Mutation"]

# Where tests live; a name alone runs the whole file.
MACHINE = "tests/stateful/test_state_machine.py"
CLAIM, TAKE = "tests/transitions/test_claim.py", "tests/transitions/test_take.py"
FINISH, CANCEL = "tests/transitions/test_finish.py", "tests/transitions/test_cancel.py"
EXPIRE, EXTEND = "tests/transitions/test_lease_expire.py", "tests/transitions/test_lease_extend.py"
RELEASE, REQUEUE = "tests/transitions/test_lease_release.py", "tests/transitions/test_requeue.py"
REJECT, EDIT = "tests/transitions/test_reject_completion.py", "tests/transitions/test_edit.py"
DISPATCH, OUTCOMES = "tests/services/test_dispatch.py", "tests/services/test_outcomes.py"
REAPING, SUBMIT = "tests/services/test_reaping.py", "tests/services/test_submit.py"
RETRY, ROUTING = "tests/unit/test_retry.py", "tests/unit/test_routing.py"
FAIRNESS, SHARES = "tests/unit/test_fairness.py", "tests/services/test_dispatch_shares.py"
HISTORY, VERIFYING = "tests/unit/test_history.py", "tests/services/test_verifying.py"
SNAPSHOTS = "tests/engine/test_old_snapshots.py"
PROCESSES, COROUTINES = "tests/workers/test_processes.py", "tests/workers/test_coroutines.py"


T = "jobs/transitions/"
MUTATIONS: tuple[Mutation, ...] = (
    # --- claim ---
    Mutation(
        "claim reads first and writes without a guard",
        (
            Change(
                T + "claim.py",
                '.filter(pk__any=[NOBODY]).select_for_update(skip_locked=True, of=("self",))',
                ".filter(pk__any=[NOBODY])",
            ),
            Change(
                T + "claim.py",
                """    delete from jobs_dueentry where shard = any(%(shards)s) and job_id = any(%(jobs)s::uuid[])
    returning job_id, shard, route_id, lane_id, priority, tenant_id, due_at, concurrency_key
), moved""",
                """    select job_id, shard, route_id, lane_id, priority, tenant_id, due_at, concurrency_key
    from jobs_dueentry where shard = any(%(shards)s) and job_id = any(%(jobs)s::uuid[])
), gone as (
    delete from jobs_dueentry where shard = any(%(shards)s) and job_id = any(%(jobs)s::uuid[])
), moved""",
            ),
            Change(
                T + "claim.py",
                "where job.shard = taken.shard and job.id = taken.job_id and job.status = 'scheduled'",
                "where job.shard = taken.shard and job.id = taken.job_id",
            ),
        ),
        (
            "tests/race/test_claim_races.py::test_f15_thirty_two_claimers_of_eight_rows_never_claim_one_twice",
        ),
    ),
    mutation(
        "claim waits for rows that others hold",
        T + "claim.py",
        'select_for_update(skip_locked=True, of=("self",))',
        'select_for_update(of=("self",))',
        "tests/race/test_losers.py::test_a_claim_passes_by_an_entry_that_is_just_being_moved",
    ),
    mutation(
        "claim ignores the due time",
        T + "claim.py",
        "    return str(sql)",
        "    return str(sql).replace(' <= ', ' <> ')",
        *(CLAIM, MACHINE),
    ),
    Mutation(
        "claim reaches into other shards",
        (
            Change(
                T + "claim.py",
                "params = [list(shards), *given, list(job_ids)]",
                "params = [list(range(conf().shards)), *given, list(job_ids)]",
            ),
            Change(
                T + "claim.py", '"shards": list(shards),', '"shards": list(range(conf().shards)),'
            ),
        ),
        (CLAIM, "tests/engine/test_captured_sql.py"),
    ),
    mutation(
        "claim reuses the token of the attempt before",
        T + "claim.py",
        "lease_token = job.lease_token + 1",
        "lease_token = greatest(1, job.lease_token)",
        *(MACHINE, FINISH),
    ),
    mutation(
        "every claim of a job has the same lease id",
        T + "claim.py",
        "md5(%(nonce)s || job.id::text)::uuid",
        "md5(job.id::text)::uuid",
        *(CLAIM, MACHINE),
    ),
    mutation(
        "claim order forgets the head start of lanes",
        "jobs/services/backlog.py",
        "(row.due - head_starts.get(row.key.lane, 0.0) - row.key.priority, row)",
        "(row.due - row.key.priority, row)",
        *(DISPATCH, SHARES),
    ),
    Mutation(
        "scan remembers where it stopped and never looks back",
        (
            Change(
                "jobs/queries/candidates.py",
                "and due_at <= {NOW_SQL} order by due_at limit %(limit)s",
                "and due_at <= {NOW_SQL} and extract(epoch from due_at) >= any(%(seen)s::float8[])"
                " order by due_at limit %(limit)s",
            ),
            Change(
                "jobs/queries/candidates.py",
                """    sql = DUE_FLOORED if floors else DUE
    return _read(sql, {**_mine(shards, floors), "limit": limit, "now": now})""",
                """    found = _read(DUE, {**_mine(shards, None), "limit": limit, "now": now, "seen": SEEN})
    if found:
        SEEN[:] = [max(row.due for row in found)]
    return found


SEEN = [0.0]""",
            ),
        ),
        ("tests/race/test_late_commits.py",),
    ),
    mutation(
        "scan begins at its floor for ever",
        "jobs/services/backlog.py",
        "self._sweep_at = ended + min(cost / LOOK_SHARE, conf().tick_seconds)",
        "self._sweep_at = ended + 1e9",
        SNAPSHOTS,
    ),
    mutation(
        "scan begins above what it has seen",
        "jobs/services/backlog.py",
        "self.floors[row.key.shard] = min(self.floors[row.key.shard], floor)",
        "self.floors[row.key.shard] = max(self.floors[row.key.shard], floor)",
        SNAPSHOTS,
    ),
    mutation(
        "scan forgives no commit that is a little late",
        "jobs/services/backlog.py",
        "self.floors = dict.fromkeys(shards, at - LATE_SECONDS)",
        "self.floors = dict.fromkeys(shards, at)",
        SNAPSHOTS,
    ),
    mutation(
        "scan reads what an old snapshot keeps at every look",
        "jobs/services/backlog.py",
        "floors = {} if sweeps else self.floors",
        "floors = {}",
        SNAPSHOTS,
    ),
    mutation(
        "the next due time is sought among what an old snapshot keeps",
        "jobs/queries/candidates.py",
        "NEXT_DUE_FLOORED if floors else NEXT_DUE, {**_mine(shards, floors)",
        "NEXT_DUE, {**_mine(shards, None)",
        SNAPSHOTS,
    ),
    mutation(
        "a scheduler that falls silent in its claim keeps its locks",
        "jobs/database.py",
        "idle_in_transaction_session_timeout = '3s'",
        "idle_in_transaction_session_timeout = '300s'",
        "tests/process/test_frozen.py::"
        "test_f07_what_a_scheduler_claims_after_its_heir_has_claimed_it_all_is_refused",
    ),
    mutation(
        "a report that was cancelled on its way counts as made",
        "workers/outbox.py",
        "            if is_unavailable(error):\n                raise\n",
        "            if is_unavailable(error):\n                self.unwritten.clear()\n                raise\n",
        "tests/process/test_database_trouble.py::"
        "test_f40_statements_and_commits_cancelled_at_random_are_never_taken_for_durable",
    ),
    mutation(
        "a full pool leaves nothing for the other one",
        "jobs/services/dispatch.py",
        "if alone and not any(self._room.values()):",
        "if alone and not all(self._room.values()):",
        DISPATCH + "::test_kf39_a_full_pool_never_stands_before_an_idle_one",
    ),
    # --- shares and limits ---
    mutation(
        "all tenants have the same weight",
        "jobs/policies/fairness.py",
        "self.next[tenant] = turn + 1.0 / weight",
        "self.next[tenant] = turn + 1.0",
        *(FAIRNESS, SHARES),
    ),
    mutation(
        "a tenant that was held back by its share saves its turns up without end",
        "jobs/policies/fairness.py",
        "behind = least if tenant in self.present else now",
        "behind = 0.0",
        FAIRNESS,
    ),
    mutation(
        "slots that the reserves of others need are given away",
        "jobs/policies/fairness.py",
        "if not mine and left <= kept:",
        "if left <= 0:",
        *(FAIRNESS, SHARES),
    ),
    mutation(
        "a limit lets one more pass",
        "jobs/policies/fairness.py",
        "if walls.get(wall, 1) < 1]",
        "if walls.get(wall, 1) < 0]",
        FAIRNESS,
    ),
    mutation(
        "the most running jobs are what the scheduler last read",
        T + "limits.py",
        "left = {tenant: limits.running[tenant] - held.get(tenant, 0) for tenant in tenants}",
        "left = {tenant: limits.running[tenant] for tenant in tenants}",
        SHARES,
    ),
    mutation(
        "a start costs no token",
        T + "limits.py",
        "spent = [float(before[scope] - left[scope]) for scope in scopes]",
        "spent = [0.0 for scope in scopes]",
        SHARES,
    ),
    mutation(
        "a job that waits for its key stands before all others",
        T + "limits.py",
        "update jobs_dueentry entry set parked = true from waiting",
        "update jobs_dueentry entry set parked = false from waiting",
        SHARES,
    ),
    mutation(
        "parked work never comes back",
        T + "unpark.py",
        "update jobs_dueentry entry set parked = false from locked",
        "update jobs_dueentry entry set parked = true from locked",
        SHARES,
    ),
    mutation(
        "a scheduler takes the whole pool, whatever waits elsewhere",
        "jobs/services/dispatch.py",
        "others = {} if alone else demands_of_others(me=scheduler_id, now=now)",
        "others: dict[UUID, object] = {}",
        SHARES,
    ),
    mutation(
        "a pool lends slots to work that may not run there",
        "jobs/services/dispatch.py",
        "if pool_id in ways[key.route][1:]",
        "if pool_id != ways[key.route][0]",
        SHARES,
    ),
    # --- routing ---
    mutation(
        "any label is enough instead of all",
        "jobs/policies/routing.py",
        "return needed.items() <= offered.items() and exclusive",
        "return (not needed or bool(needed.items() & offered.items())) and exclusive",
        *(ROUTING, DISPATCH),
    ),
    mutation(
        "exclusive pools take plain work",
        "jobs/policies/routing.py",
        "return needed.items() <= offered.items() and exclusive.items() <= needed.items()",
        "return needed.items() <= offered.items()",
        *(ROUTING, DISPATCH),
    ),
    mutation(
        "work goes to a pool that does not know its handler",
        "jobs/policies/routing.py",
        "        if handler in pool.handlers\n        and can_run(",
        "        if can_run(",
        *(ROUTING, MACHINE),
    ),
    # --- take ---
    mutation(
        "take does not lock what it chooses",
        T + "take.py",
        "order by rank, published_at limit %(limit)s for update skip locked))",
        "order by rank, published_at limit %(limit)s))",
        "tests/race/test_claim_races.py::test_f15_thirty_two_takers_of_eight_leases_never_take_one_twice",
        "tests/race/test_losers.py::test_a_take_passes_by_a_lease_that_another_worker_is_just_taking",
    ),
    mutation(
        "take looks into other pools",
        T + "take.py",
        "and pool_id = %(pool)s and worker is null",
        "and worker is null",
        *(TAKE, MACHINE),
    ),
    mutation(
        "take hands out handlers that the worker does not know",
        T + "take.py",
        "\n            and route_id = any(array(select id from jobs_route where handler = any(%(handlers)s)))",
        "",
        *(TAKE, MACHINE),
    ),
    mutation(
        "take ignores that a cancel was asked",
        T + "take.py",
        "and worker is null and not cancel_requested",
        "and worker is null",
        TAKE,
    ),
    Mutation(
        "a lease runs by the worker's clock",
        (
            Change(
                T + "take.py",
                '        "now": now,\n',
                '        "now": now or datetime.now().astimezone(),\n',
            ),
        ),
        ("tests/engine/test_clocks.py",),
    ),
    mutation(
        "a repeated attempt looks new to its receiver",
        "workers/handlers.py",
        'return f"{self.tenant}/{self._taken.request_key or self._taken.job_id}"',
        'return f"{self.tenant}/{self._taken.request_key or self._taken.job_id}/{self.attempt}"',
        "tests/workers/test_handlers.py",
    ),
    # --- reports ---
    mutation(
        "any worker may report any lease",
        T + "statements.py",
        '"worker = %(worker)s"  # the holder',
        '"worker is not null"  # the holder',
        *(FINISH, MACHINE),
    ),
    mutation(
        "a completion need not come from the holder",
        T + "finish.py",
        "    guard=HELD,\n    end=JobStatus.SUCCEEDED,",
        '    guard="true",\n    end=JobStatus.SUCCEEDED,',
        *(OUTCOMES, MACHINE),
    ),
    mutation(
        "a heartbeat extends leases of others",
        T + "lease.py",
        "and id = any(%(leases)s::uuid[]) and worker = %(worker)s\nreturning id, cancel_requested",
        "and id = any(%(leases)s::uuid[])\nreturning id, cancel_requested",
        *(EXTEND, MACHINE),
    ),
    mutation(
        "a retry ignores that a cancel was asked",
        T + "finish.py",
        'guard=f"{HELD} and not cancel_requested",\n    end=JobStatus.SCHEDULED,\n    kind=EventKind.FAILED,',
        "guard=HELD,\n    end=JobStatus.SCHEDULED,\n    kind=EventKind.FAILED,",
        *(FINISH, MACHINE),
    ),
    mutation(
        "a death ignores that a cancel was asked",
        T + "finish.py",
        'guard=f"{HELD} and not cancel_requested",\n    end=JobStatus.DEAD,',
        "guard=HELD,\n    end=JobStatus.DEAD,",
        *(FINISH, MACHINE),
    ),
    mutation(
        "a retry does not wait",
        T + "statements.py",
        "WAITS_AFTER = f\"{NOW_SQL} + (item ->> 'delay')::float8 * interval '1 second'\"",
        "WAITS_AFTER = NOW_SQL",
        *(FINISH, MACHINE),
    ),
    mutation(
        "a snooze costs an attempt",
        T + "finish.py",
        'columns="attempt_limit = job.attempt_limit + 1,"',
        'columns=""',
        *(FINISH, MACHINE),
    ),
    mutation(
        "a released job loses an attempt",
        T + "lease.py",
        'columns="attempt_limit = job.attempt_limit + 1,",\n    detail="item",',
        'columns="",\n    detail="item",',
        *(RELEASE, MACHINE),
    ),
    mutation(
        "an event of an ended lease is lost",
        T + "statements.py",
        "    from ended\n    where job.shard = ended.shard and job.id = ended.job_id and job.status = 'leased'\n"
        "    returning ended.*, job.handler, job.cancel_reason, job.cancel_requested_by\n"
        "){calendar}{self.extra}, told as (\n    {event}\n)",
        "    from ended\n    where job.shard = ended.shard and job.id = ended.job_id and job.status = 'leased'\n"
        "    returning ended.*, job.handler, job.cancel_reason, job.cancel_requested_by\n"
        "){calendar}{self.extra}, told as (\n    {event} where cancel_requested is null\n)",
        *(FINISH, MACHINE),
    ),
    Mutation(
        "the event of a refusal is written after the commit",
        (
            Change(
                T + "finish.py",
                "from jobs.clock import NOW_SQL\n",
                "from django.db import transaction\nfrom jobs.clock import NOW_SQL\n",
            ),
            Change(
                T + "finish.py",
                "    return bool(\n        rows(\n            REJECTED,",
                "    return not transaction.on_commit(\n        lambda: rows(\n            REJECTED,",
            ),
        ),
        (REJECT, MACHINE),
    ),
    mutation(
        "a report that is sent again is taken for a late one",
        T + "finish.py",
        "    if rows(ENDED_BY_HOLDER, params)[0][0]:\n        return False\n",
        "",
        *(REJECT, MACHINE),
    ),
    # --- retry ---
    mutation(
        "one attempt more than the budget",
        "jobs/policies/retry.py",
        "    if attempt >= attempt_limit:",
        "    if attempt > attempt_limit:",
        *(RETRY, MACHINE),
    ),
    mutation(
        "jitter goes below its lower bound",
        "jobs/policies/retry.py",
        "low = nominal * (1.0 - policy.jitter)",
        "low = 0.0",
        *(RETRY, MACHINE),
    ),
    mutation(
        "retries have no jitter",
        "jobs/policies/retry.py",
        "return min(max(rng.uniform(low, high), MIN_DELAY_SECONDS), policy.max_seconds)",
        "return min(max((low + high) / 2, MIN_DELAY_SECONDS), policy.max_seconds)",
        *(RETRY, REAPING),
    ),
    # --- expiry ---
    Mutation(
        "a lease expires before the tolerance is over",
        (
            Change(
                T + "statements.py",
                "LAPSED = f\"expires_at + %(tolerance)s * interval '1 second' < {NOW_SQL}\"",
                'LAPSED = f"expires_at < {NOW_SQL}"',
            ),
            Change(
                "jobs/queries/fleet.py",
                "select id, expires_at + %(tolerance)s * interval '1 second' < {NOW_SQL}",
                "select id, expires_at < {NOW_SQL}",
            ),
        ),
        (REAPING, EXPIRE, MACHINE),
    ),
    mutation(
        "the guard of an expiry comes 1.9 s early",
        T + "statements.py",
        "LAPSED = f\"expires_at + %(tolerance)s * interval '1 second' < {NOW_SQL}\"",
        "LAPSED = f\"expires_at + (%(tolerance)s - 1.9) * interval '1 second' < {NOW_SQL}\"",
        EXPIRE,
    ),
    mutation(
        "an expiry ignores that a cancel was asked",
        T + "lease.py",
        'guard=f"worker is not null and not cancel_requested and {LAPSED}",\n    end=JobStatus.SCHEDULED,',
        'guard=f"worker is not null and {LAPSED}",\n    end=JobStatus.SCHEDULED,',
        *(EXPIRE, MACHINE),
    ),
    mutation(
        "a lost worker costs no attempt",
        T + "lease.py",
        "    columns=\"last_error = item -> 'error',\",\n    detail=LOST,\n).sql()\n\nEXPIRE_TO_DEAD",
        "    columns=\"last_error = item -> 'error', attempt_limit = job.attempt_limit + 1,\",\n    detail=LOST,\n).sql()\n\nEXPIRE_TO_DEAD",
        *(EXPIRE, MACHINE),
    ),
    mutation(
        "published work that nobody took loses an attempt",
        T + "lease.py",
        'columns="attempt_limit = job.attempt_limit + 1,",\n    detail="jsonb_build_object(\'expires_at\', expires_at)"',
        'columns="",\n    detail="jsonb_build_object(\'expires_at\', expires_at)"',
        *(EXPIRE, MACHINE),
    ),
    mutation(
        "a publish expiry takes a lease that was just started",
        T + "lease.py",
        'guard=f"worker is null and {LAPSED}"',
        "guard=LAPSED",
        *(
            EXPIRE,
            "tests/race/test_losers.py::test_an_expiry_that_waited_for_a_take_leaves_the_taken_lease_alone",
        ),
    ),
    mutation(
        "the reaper sees its first page only",
        "jobs/services/reaping.py",
        "        if len(page) < limit:\n            break\n",
        "        break\n",
        *(REAPING, MACHINE),
    ),
    mutation(
        "one bad row stops the reaper",
        "jobs/services/reaping.py",
        "        if len(leases) == 1:\n            done.failed += 1",
        "        if len(leases) > 0:\n            done.failed += 1",
        REAPING,
    ),
    # --- cancel ---
    mutation(
        "a cancel ends a job while it runs",
        T + "cancel.py",
        "where shard = %(shard)s and job_id = %(job)s and worker is null\n",
        "where shard = %(shard)s and job_id = %(job)s\n",
        *(CANCEL, MACHINE),
    ),
    mutation(
        "a cancel is asked twice",
        T + "cancel.py",
        "and worker is not null and not cancel_requested\n",
        "and worker is not null\n",
        *(CANCEL, MACHINE),
    ),
    mutation(
        "a stop is accepted that nobody asked for",
        T + "cancel.py",
        'ACKNOWLEDGE = _acknowledge("cancel_requested")',
        'ACKNOWLEDGE = _acknowledge("true")',
        CANCEL,
    ),
    mutation(
        "a worker does not hear of cancels",
        "workers/heartbeat.py",
        "                    if asked[lease_id]:\n",
        "                    if False:\n",
        "tests/workers/test_heartbeat.py",
    ),
    # --- dead letters and edits ---
    mutation(
        "a requeue begins to count tokens anew",
        T + "requeue.py",
        "set status = 'scheduled', finished_at = null,",
        "set status = 'scheduled', finished_at = null, lease_token = 0,",
        *(REQUEUE, MACHINE),
    ),
    mutation(
        "a requeue begins to count attempts anew",
        T + "requeue.py",
        "attempt_limit = job.attempt + job.max_attempts",
        "attempt = 0, attempt_limit = job.max_attempts",
        *(REQUEUE, MACHINE),
    ),
    mutation(
        "a requeue grants no new budget",
        T + "requeue.py",
        "attempt_limit = job.attempt + job.max_attempts",
        "attempt_limit = job.attempt_limit + 1",
        *(REQUEUE, MACHINE),
    ),
    mutation(
        "a dead letter can be decided about twice",
        T + "requeue.py",
        "where shard = %(shard)s and id = %(letter)s and resolution = 'open'",
        "where shard = %(shard)s and id = %(letter)s",
        *(REQUEUE, MACHINE),
    ),
    # --- requests ---
    mutation(
        "a request key answers for any request",
        "jobs/services/submit.py",
        'if bytes(earlier.request_hash or b"") != job.request_hash:',
        "if earlier.request_hash is None:",
        *(SUBMIT, MACHINE),
    ),
    mutation(
        "a repeated request is a conflict",
        "jobs/services/submit.py",
        "request_hash(dict(request.sent)) if request.request_key",
        "request_hash({**request.sent, 'id': str(job_id)}) if request.request_key",
        *(SUBMIT, MACHINE),
    ),
    mutation(
        "one view forgets the tenant",
        "jobs/queries/history.py",
        "        jobs = jobs.filter(tenant=tenant_id)\n",
        "        jobs = jobs.filter(shard=shard)\n",
        "tests/api/test_cancel_job.py::test_s05_a_foreign_job_cannot_be_cancelled_and_looks_like_none",
    ),
    mutation(
        "another view forgets the tenant",
        "jobs/queries/history.py",
        ' and (%(tenant)s::int is null or job.tenant_id = %(tenant)s)"""',
        '"""',
        "tests/api/test_get_job.py::test_s05_a_foreign_job_looks_exactly_like_none",
    ),
    # --- processes ---
    mutation(
        "a scheduler waits for hints and never polls",
        "workers/scheduler.py",
        "return tick if next_due is None else min(tick, next_due + 0.0005)",
        "return 3600.0 if next_due is None else next_due + 3600.0",
        "tests/workers/test_scheduler.py",
    ),
    mutation(
        "a worker waits for hints and never polls",
        "workers/intake.py",
        "if limit <= 0 or not (self._hinted or now >= self._look_again_at):",
        "if limit <= 0 or not self._hinted:",
        "tests/process/test_database_trouble.py::test_kf54_jobs_start_within_a_poll_where_no_hint_ever_arrives",
    ),
    Mutation(
        "workers of one host share their identity",
        (
            Change(
                "workers/worker.py",
                "from uuid import UUID, uuid4\n",
                "from uuid import UUID, uuid5\n",
            ),
            Change(
                "workers/worker.py",
                "self.id: UUID = uuid4()",
                "self.id: UUID = uuid5(UUID(int=0), socket.gethostname())",
            ),
        ),
        ("tests/engine/test_identity.py",),
    ),
    mutation(
        "a worker trusts its lease for longer than it lasts",
        "workers/execution.py",
        "return sent_at + 0.8 * conf().lease_ttl_seconds",
        "return sent_at + 1.5 * conf().lease_ttl_seconds",
        "tests/workers/test_handlers.py",
    ),
    mutation(
        "an attempt can be reported by its slot and by the loop",
        "workers/execution.py",
        "            return self._right.pop()\n",
        "            return self._right[-1]\n",
        "tests/workers/test_execution.py",
    ),
    mutation(
        "the shards of a dead scheduler stay without an owner",
        "workers/ownership.py",
        "where (owner is null or expires_at < {NOW_SQL}) and number",
        "where owner is null and number",
        "tests/workers/test_ownership.py",
    ),
    # --- executors ---
    mutation(
        "a process that hangs is only asked",
        "workers/executors/processes.py",
        "            slot.kill(execution)\n",
        "            slot.tell()\n",
        PROCESSES,
    ),
    mutation(
        "a process that is being killed is given another attempt",
        "workers/executors/slot.py",
        "child.doomed = True",
        "child.doomed = False",
        PROCESSES,
    ),
    mutation(
        "handlers see the secrets of the scheduler",
        "workers/executors/environment.py",
        "return name.startswith(KEPT_PREFIXES) and not own",
        "return name.startswith(KEPT_PREFIXES) or own",
        PROCESSES,
    ),
    mutation(
        "a coroutine that hears of no stop is left alone",
        "workers/execution.py",
        "loop.call_later(CANCEL_SECONDS, task.cancel)",
        "loop.call_later(CANCEL_SECONDS, task.done)",
        COROUTINES,
    ),
    mutation(
        "a blocked event loop is kept",
        "workers/executors/coroutines.py",
        "if self._lane.is_blocked:",
        "if self._lane is None:",
        COROUTINES,
    ),
    # --- the checker ---
    mutation(
        "the checker lets tokens repeat",
        "jobs/policies/history.py",
        "event.token <= state.token:",
        "event.token < state.token:",
        HISTORY,
    ),
    mutation(
        "the checker lets a cancelled job start",
        "jobs/policies/history.py",
        "if state.cancel_asked and event.kind in (_K.LEASED, _K.STARTED):",
        "if state.cancel_asked and event.kind == _K.CREATED:",
        HISTORY,
    ),
    mutation(
        "the checker lets a job be claimed before its time",
        "jobs/policies/history.py",
        "if state.due_at is not None and event.at < state.due_at:",
        "if state.due_at is not None and event.at < state.due_at - timedelta(days=1):",
        HISTORY,
    ),
    mutation(
        "the checker accepts an end under an older lease",
        "jobs/policies/history.py",
        "if (event.lease, event.token) != (state.lease, state.token):",
        "if event.token != state.token:",
        HISTORY,
    ),
    mutation(
        "the checker does not look at the id of a lease",
        "jobs/policies/history.py",
        '("id", state.lease, lease.id),',
        '("id", lease.id, lease.id),',
        *(HISTORY, VERIFYING),
    ),
    mutation(
        "the checker does not look at who asked for a cancel",
        "jobs/policies/history.py",
        '("cancel_requested", state.cancel_asked, lease.cancel_requested),',
        '("cancel_requested", lease.cancel_requested, lease.cancel_requested),',
        *(HISTORY, VERIFYING),
    ),
    mutation(
        "the checker lets a success keep silent about a cancel",
        "jobs/policies/history.py",
        'if (outcome == "too_late") != state.cancel_asked:',
        'if outcome == "too_late" and not state.cancel_asked:',
        *(HISTORY, VERIFYING),
    ),
    mutation(
        "the checker lets a lease expire within the tolerance",
        "jobs/policies/history.py",
        "if waited < bounds.tolerance_seconds - MOMENT.total_seconds():",
        "if waited < 0.0:",
        *(HISTORY, VERIFYING),
    ),
    mutation(
        "the verification reads no lease",
        "jobs/queries/histories.py",
        'lease=None if lease["id"] is None else LeaseFacts(**lease),',
        "lease=None,",
        VERIFYING,
    ),
    *SCHEDULE_MUTATIONS,
)
