"""The audit history: a table partitioned by UTC day, and the function that creates its partitions.

Reversible: dropping the table drops its partitions.
"""

from typing import ClassVar

from django.db import migrations

CREATE = """
create table jobs_jobevent (
    id bigint not null,
    shard smallint not null,
    job_id uuid not null,
    seq integer not null,
    tenant_id integer not null,
    at timestamptz not null,
    kind varchar(20) not null,
    from_status varchar(10),
    to_status varchar(10) not null,
    attempt integer not null,
    actor varchar(150) not null,
    lease uuid,
    token integer,
    due_at timestamptz,
    detail jsonb,
    primary key (at, id)
) partition by range (at);
create index event_by_job on jobs_jobevent (shard, job_id, seq);
create table jobs_jobevent_default partition of jobs_jobevent default;

-- Creates the partitions of today and the next `days` UTC days that are missing, and returns how many that were.
-- A partition is filled from DEFAULT before it is attached, so a day that was forgotten is repaired as well.
-- ATTACH blocks neither readers nor writers of the other partitions.
create function jobs_ensure_event_partitions(days integer) returns integer language plpgsql as $$
declare
    day date;
    name text;
    made integer := 0;
begin
    for day in select generate_series((now() at time zone 'UTC')::date,
                                      (now() at time zone 'UTC')::date + days, '1 day')::date loop
        name := 'jobs_jobevent_' || to_char(day, 'YYYYMMDD');
        continue when to_regclass(name) is not null;
        execute format('create table %I (like jobs_jobevent including all)', name);
        execute format(
            'with strayed as (delete from jobs_jobevent_default where at >= %L and at < %L returning *)
             insert into %I select * from strayed',
            day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC', name);
        execute format('alter table jobs_jobevent attach partition %I for values from (%L) to (%L)',
            name, day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC');
        made := made + 1;
    end loop;
    return made;
end $$;
select jobs_ensure_event_partitions(8);
"""
DROP = "drop function jobs_ensure_event_partitions(integer); drop table jobs_jobevent;"


class Migration(migrations.Migration):
    """History exists before the first job does."""

    dependencies: ClassVar = [("jobs", "0001_initial")]
    operations: ClassVar = [migrations.RunSQL(CREATE, DROP)]
