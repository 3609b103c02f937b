"""What the schema allows without our Python: the same stages on the same tables, in raw SQL.

A client, one scheduler process and one worker process with slot threads; psycopg and nothing else. They leave the rows
that the product leaves, the whole history included, but they check no request, own no shards, order nothing, send no
heartbeat, survive no outage and know one outcome. So this is a limit to compare with, and no engine.

Run by the benchmarks: `python -m benchmarks.limit scheduler` and `python -m benchmarks.limit worker SLOTS`, with
DATABASE_URL. Both sleep until work is due.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import datetime

import psycopg

from benchmarks.starts import VARIABLE, Starts

CLAIM_BATCH, WINDOW_PER_SLOT, FINISH_BATCH = 500, 32, 1_000
READY_MOST = 2_000  # published and not yet taken
POLL_SECONDS, IDLE_SECONDS = 0.005, 1.0
CHANNEL, DUE_CHANNEL = "duekeeper_limit", "duekeeper_limit_due"
SHARDS = 64

EVENT = """insert into jobs_jobevent (id, shard, job_id, seq, tenant_id, at, kind, from_status, to_status, attempt, actor,
        lease, token, due_at, detail)
    select uuid_hash_extended(job_id, seq), shard, job_id, seq, tenant_id, now(), '{kind}', nullif('{start}', ''), '{end}',
        attempt, %(actor)s, lease_id, token, {due_at}, {detail} from {source}"""

# nothing → due entry. What is the same for all jobs of a batch comes once, as in no API.
CREATE = f"""
with made as (
    insert into jobs_job (id, shard, tenant_id, handler, route_id, lane_id, priority, payload, due_at, max_attempts,
        attempt_limit, retry, timeout_seconds, request_key, request_hash, reference, tags, created_by, created_at,
        updated_at)
    select id, shard, %(tenant)s, name, %(route)s, %(lane)s, 0, payload::jsonb,
        coalesce(due, now()), max_attempts, max_attempts, retry, timeout_seconds, key, %(hash)s, '', '[]',
        %(actor)s, now(), now()
    from unnest(%(ids)s::text[]::uuid[], %(shards)s::smallint[], %(payloads)s::text[], %(keys)s::text[],
        %(due)s::timestamptz[]) as wanted (id, shard, payload, key, due),
        jobs_handler where name = %(handler)s
    returning id as job_id, shard, tenant_id, route_id, lane_id, priority, due_at, concurrency_key, attempt, seq,
        null::uuid as lease_id, null::int as token
), told as (
    {
    EVENT.format(
        kind="created",
        start="",
        end="scheduled",
        source="made",
        due_at="due_at",
        detail="null::jsonb",
    )
}
)
insert into jobs_dueentry (job_id, due_at, shard, route_id, lane_id, priority, tenant_id, concurrency_key)
select job_id, due_at, shard, route_id, lane_id, priority, tenant_id, concurrency_key from made"""

# due entry → published lease
CLAIM = f"""
with entry as (
    delete from jobs_dueentry where job_id = any(array(
        select job_id from jobs_dueentry where due_at <= now() limit %(limit)s for update skip locked))
    returning job_id, shard, route_id, lane_id, priority, tenant_id, due_at, concurrency_key
), moved as (
    update jobs_job job set status = 'leased', attempt = job.attempt + 1, seq = job.seq + 1,
        lease_token = job.lease_token + 1, updated_at = now()
    from entry where job.id = entry.job_id and job.status = 'scheduled'
    returning entry.*, job.attempt, job.seq, job.lease_token as token,
        md5(%(nonce)s || job.id::text)::uuid as lease_id
), told as (
    {
    EVENT.format(
        kind="leased",
        start="scheduled",
        end="leased",
        source="moved",
        due_at="due_at",
        detail="jsonb_build_object('pool', 'default', 'lane', lane_id)",
    )
}
)
insert into jobs_lease (id, job_id, token, attempt, seq, shard, route_id, pool_id, lane_id, priority, rank, due_at,
    tenant_id, published_at, expires_at, concurrency_key)
select lease_id, job_id, token, attempt, seq, shard, route_id, %(pool)s, lane_id, priority, due_at, due_at,
    tenant_id, now(), now() + interval '60 s', concurrency_key
from moved"""  # its commit does not wait for the disk, as that of the product's claim

# published → running
TAKE = f"""
with started as (
    update jobs_lease set worker = %(worker)s, started_at = now(), heartbeat_at = now(), seq = seq + 1,
        expires_at = now() + interval '30 s'
    where id = any(array(
        select id from jobs_lease where pool_id = %(pool)s and worker is null
        order by rank limit %(limit)s for update skip locked))
    returning id as lease_id, job_id, shard, tenant_id, attempt, token, seq
), told as (
    {EVENT.format(kind="started", start="leased", end="leased", source="started", due_at="null::timestamptz", detail="null::jsonb")}
)
select lease_id, job.id, job.handler, job.payload from started join jobs_job job on job.id = started.job_id"""

# running → succeeded. One probe of one unique key is the guard: a second `= any(…)` beside a join turns quadratic when
# the plan is a generic one, for it guesses ten rows for any array.
FINISH = f"""
with ended as (
    delete from jobs_lease where id = any(%(leases)s::uuid[]) and worker = %(worker)s
    returning id as lease_id, job_id, shard, tenant_id, attempt, token, seq + 1 as seq
), told as (
    {EVENT.format(kind="succeeded", start="leased", end="succeeded", source="ended", due_at="null::timestamptz", detail="null::jsonb")}
)
update jobs_job job set status = 'succeeded', finished_at = now(), updated_at = now(), seq = ended.seq
from ended where job.id = ended.job_id and job.status = 'leased'"""

NEXT_DUE = "select extract(epoch from min(due_at) - clock_timestamp())::float8 from jobs_dueentry"
READY = "select count(*) from jobs_lease where pool_id = %(pool)s and worker is null"


def connect(role: str) -> psycopg.Connection:
    """The one connection of a process, named after its role."""
    url, name = os.environ["DATABASE_URL"], f"{CHANNEL}_{role}"
    return psycopg.connect(url, autocommit=True, application_name=name)


def one(link: psycopg.Connection, query: str, **params: object) -> int | float | None:
    """The only value of a one-row answer."""
    row = link.execute(query.encode(), params).fetchone()
    return None if row is None else row[0]


def default_pool(link: psycopg.Connection) -> int | float | None:
    """Id of the pool that the product's workers serve."""
    return one(link, "select id from jobs_pool where name = 'default'")


class Creator:
    """A client that knows everything beforehand: no request is checked, no name looked up, no shard computed."""

    def __init__(self, link: psycopg.Connection, *, handler: str) -> None:
        """`link` is the client's own connection; a job of this handler must have been stored before."""
        self._link = link
        route = "select id from jobs_route where handler = %(handler)s"
        self._all = {
            "handler": handler,
            "route": one(link, route, handler=handler),
            "lane": one(link, "select id from jobs_lane where name = 'normal'"),
            "hash": secrets.token_bytes(32),
            "actor": "token:benchmark",
        }

    def create(
        self,
        tenant: int,
        numbers: Sequence[int],
        payloads: Sequence[object],
        due: Sequence[datetime] = (),
    ) -> None:
        """One statement, one commit; without `due` all are due now."""
        batch: dict[str, object] = {
            "tenant": tenant,
            "due": due or [None for _ in numbers],
            "ids": [str(new_id(number)) for number in numbers],
            "shards": [number % SHARDS for number in numbers],
            "payloads": [json.dumps(payload) for payload in payloads],
            "keys": [f"order-{number}" for number in numbers],
        }
        self._link.execute(CREATE.encode(), self._all | batch)
        if not due:
            self._link.execute(f"notify {DUE_CHANNEL}".encode())


def new_id(number: int) -> uuid.UUID:
    """Ordered by time and with the shard in it, as the product's ids are."""
    milliseconds, rest = time.time_ns() // 1_000_000, secrets.randbits(62)
    return uuid.UUID(
        int=milliseconds << 80 | 0x7 << 76 | number % SHARDS << 64 | 0b10 << 62 | rest
    )


def schedule() -> None:
    """Claim and publish for ever."""
    link = connect("scheduler")
    link.execute("set synchronous_commit = off")
    link.execute(f"listen {DUE_CHANNEL}".encode())
    pool = default_pool(link)
    claim = {"pool": pool, "actor": f"scheduler:{uuid.uuid4()}", "limit": CLAIM_BATCH}
    while True:
        next_due = one(link, NEXT_DUE)
        if next_due is None or next_due > 0:
            for _ in link.notifies(
                timeout=min(IDLE_SECONDS, next_due or IDLE_SECONDS), stop_after=1
            ):
                pass
            continue
        while True:
            if (one(link, READY, pool=pool) or 0) > READY_MOST:
                time.sleep(POLL_SECONDS)
            elif (
                link.execute(CLAIM.encode(), claim | {"nonce": secrets.token_hex(16)}).rowcount
                == 0
            ):
                break
            else:
                link.execute(f"notify {CHANNEL}".encode())


def work(slots: int) -> None:
    """Take, run nothing, finish, for ever."""
    link = connect("worker")
    link.execute(f"listen {CHANNEL}".encode())
    worker = uuid.uuid4()
    who = {"worker": worker, "actor": f"worker:{worker}", "pool": default_pool(link)}
    todo: queue.SimpleQueue[tuple[uuid.UUID, dict[str, int]]] = queue.SimpleQueue()
    done: queue.SimpleQueue[uuid.UUID] = queue.SimpleQueue()
    starts = Starts.of_environment() if VARIABLE in os.environ else None

    def slot() -> None:
        while True:
            lease_id, payload = todo.get()
            if starts is not None:
                starts.note(payload["number"])
            done.put(lease_id)

    for _ in range(slots):
        threading.Thread(target=slot, daemon=True).start()
    held, window = 0, slots * WINDOW_PER_SLOT
    while True:
        free = window - held
        if free >= window // 2:
            found = link.execute(TAKE.encode(), {**who, "limit": free}).fetchall()
            for lease_id, _, _, payload in found:
                todo.put((lease_id, payload))
                held += 1
        if not held:
            for _ in link.notifies(timeout=IDLE_SECONDS, stop_after=1):
                pass
            continue
        finished = [done.get()]
        try:
            finished.append(done.get(timeout=POLL_SECONDS))
            while len(finished) < FINISH_BATCH:
                finished.append(done.get_nowait())
        except queue.Empty:
            pass
        link.execute(FINISH.encode(), {**who, "leases": finished})
        held -= len(finished)


if __name__ == "__main__":
    if sys.argv[1] == "scheduler":
        schedule()
    else:
        work(int(sys.argv[2]))
