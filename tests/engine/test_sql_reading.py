"""The reader of captured statements finds what it must, and lets good statements pass."""

from __future__ import annotations

import pytest

from tests.support.sql import faults, normal

GOOD = {
    "list": "select id from jobs_job where shard = any(%(shards)s) and id = %(id)s",
    "one": "select id from jobs_job where shard = %(shard)s",
    "orm": 'SELECT "jobs_job"."status" FROM "jobs_job" WHERE ("jobs_job"."shard" = %s AND "jobs_job"."id" = %s) LIMIT 1',
    "orm list": 'SELECT "jobs_dueentry"."job_id" FROM "jobs_dueentry" WHERE ("jobs_dueentry"."shard"'
    ' = ANY(%s::smallint[]) AND "jobs_dueentry"."due_at" <= (STATEMENT_TIMESTAMP()))'
    ' ORDER BY 1 ASC FOR UPDATE OF "jobs_dueentry" SKIP LOCKED',
    "join": "select 1 from jobs_lease lease left join jobs_job job on job.shard = lease.shard and job.id ="
    " lease.job_id where lease.shard = any(%(shards)s)",
    "moved": "with gone as (delete from jobs_lease where shard = any(%(s)s) returning job_id, shard)"
    " update jobs_job job set seq = 1 from gone where job.shard = gone.shard and job.id = gone.job_id",
    "insert": "insert into jobs_dueentry (job_id, shard) select job_id, shard from moved",
    "lateral": "select min(head.due_at) from unnest(%(s)s::smallint[]) as mine(shard) cross join lateral (select"
    " due_at from jobs_dueentry entry where entry.shard = any(%(s)s) and entry.shard = mine.shard) head",
    "lateral by each": "select min(head.due_at) from unnest(%(s)s::smallint[]) as mine(shard) cross join lateral"
    " (select due_at from jobs_dueentry entry where entry.shard = mine.shard) head",
    "other table": "update jobs_worker set running = 0 where id = %s",
    "a quoted name": "select 'from jobs_job' from jobs_lane",
    "prepared": "select id from jobs_job where shard = $1",
}
BAD = {
    "no shard": "select id from jobs_job where id = %(id)s",
    "no condition": "select count(*) from jobs_lease",
    "orm": 'SELECT "jobs_job"."status" FROM "jobs_job" WHERE "jobs_job"."id" = %s',
    "selected only": "select shard from jobs_job where id = %(id)s",
    "set only": "update jobs_job set shard = %(shard)s where id = %(id)s",
    "returned only": "delete from jobs_lease where id = %(id)s returning shard = any(%(shards)s)",
    "ored": "select 1 from jobs_job where shard = any(%(shards)s) or id = %(id)s",
    "inequality": "select 1 from jobs_job where shard > %(shard)s",
    "join by id": "select 1 from jobs_lease lease join jobs_job job on job.id = lease.job_id"
    " where lease.shard = any(%(shards)s)",
    "join of two unbound": "select 1 from jobs_lease lease join jobs_job job on job.shard = lease.shard",
    "comma join": "select 1 from jobs_lease lease, jobs_job job"
    " where lease.shard = any(%(shards)s) and job.id = lease.job_id",
    "sub-select": "select 1 from jobs_lease where shard = any(%(s)s) and job_id in (select id from jobs_job)",
    "exists": "select 1 from jobs_lease where shard = %s and exists(select from jobs_deadletter where id = %s)",
    "update from": "update jobs_job job set seq = 1 from gone where job.id = gone.job_id",
    "delete": "delete from jobs_dueentry where job_id = any(%(jobs)s)",
    "delete using": "delete from jobs_dueentry entry using gone where entry.job_id = gone.job_id",
    "in a part": "with gone as (delete from jobs_lease where id = %(id)s returning shard)"
    " select shard from gone",
    "insert": "insert into jobs_jobevent (id, job_id) values (1, 2)",
    "insert without columns": "insert into jobs_dueentry select * from moved",
    "insert from": "insert into jobs_dueentry (job_id, shard) select id, shard from jobs_job",
    "union": "select 1 from jobs_job where shard = %s union all select 1 from jobs_lease",
    "each of a table": "select 1 from unnest(array(select number from jobs_shard)::smallint[]) as mine(shard)"
    " cross join lateral (select due_at from jobs_dueentry entry where entry.shard = mine.shard) head",
    "any of a table": "select 1 from jobs_job where shard = any(select number from jobs_shard)",
    "unqualified among two": "select 1 from jobs_lease lease join jobs_job job on job.id = lease.job_id"
    " where shard = any(%(shards)s)",
    "in a comment": "select 1 from jobs_job -- where shard = any(%(shards)s)",
    "in a text": "select 1 from jobs_job where tags = ' shard = 5 '",
    "sequence": "insert into jobs_job (shard, seq) values (%s, nextval('s'))",
    "advisory lock": "select pg_advisory_xact_lock(%s)",
    "trying lock": "select pg_try_advisory_lock(%s)",
    "moving clock": "update jobs_job set updated_at = clock_timestamp() where shard = %s",
}


@pytest.mark.parametrize("sql", GOOD.values(), ids=GOOD)
def test_a_statement_that_names_its_shard_passes(sql):
    assert faults(sql) == []


@pytest.mark.parametrize("sql", BAD.values(), ids=BAD)
def test_a_statement_that_would_ask_every_node_is_found(sql):
    assert faults(sql) != []


def test_the_moving_clock_may_be_read_where_nothing_changes():
    assert faults("select extract(epoch from clock_timestamp())") == []


def test_a_statement_is_compared_by_what_it_says_not_by_its_layout():
    one = 'SELECT "id"\n  FROM "jobs_job" -- why\n WHERE  "shard" = 1 /* because */'
    assert normal(one) == "select id from jobs_job where shard = 1"
