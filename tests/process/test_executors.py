"""Real workers with each executor: what kills or hangs costs its own attempt only, and leases outlive busy handlers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from uuid import UUID

import psutil
import pytest

from jobs.models import DeadLetter, Job, Lease, Tenant, Worker
from jobs.policies.sharding import shard_of_id
from jobs.transitions.cancel import cancel_job
from tests.process.stories import (
    assert_at_rest,
    events,
    finished,
    happened,
    result_of,
    seconds_between,
    story,
    submit,
    submit_many,
)
from tests.support.books import assert_balanced
from tests.support.process import PROFILE, ROOT, T_REC, Fleet, Process, environment

pytestmark = pytest.mark.process

LOST = ["leased", "started", "failed"]
ONCE = ["created", "leased", "started", "succeeded"]
BUDGET, NEIGHBOURS = 3, 4
POLICY = {"kind": "fixed", "base_seconds": 0.2, "jitter": 0.0}
LEASE = PROFILE["lease_ttl_seconds"]
ENDS = {
    "exit": "ended with exit code 1",
    "segfault": "was killed by SIGSEGV",
    "out of memory": "was killed by SIGKILL, perhaps for want of memory",
}
MEMORY_MB = 400


def processes(fleet: Fleet, *flags: str, slots: int, **settings: object) -> Process:
    given = ("--executor", "processes", "--slots", str(slots), "--pass-env", "PROBE_FOLDER")
    worker: Process = fleet.worker(*given, *flags, **settings)
    return worker


def template_of(worker: Process) -> psutil.Process:
    (template,) = psutil.Process(worker.pid).children()
    return template


def children_of(worker: Process) -> list[psutil.Process]:
    """The processes of its handlers."""
    return template_of(worker).children()


def run_by(jobs: Iterable[UUID]) -> set[str]:
    return {event.actor for job in jobs for event in events(job, "started")}


# F08


def test_f08_kf32_in_processes_a_handler_that_kills_itself_costs_its_own_attempts_only(
    fleet, probe
):
    fleet.fork_all()
    fleet.scheduler()
    worker = processes(fleet, "--max-memory-mb", str(MEMORY_MB), slots=NEIGHBOURS + 2)
    fleet.ready()
    neighbours = submit_many(NEIGHBOURS, gate="end", max_attempts=5)
    fleet.until(lambda: len(probe.notes(what="began")) == NEIGHBOURS, "all of them run")
    killers = {way: submit("probe.kills", way=way, retry=POLICY) for way in ENDS}
    hoarder = submit("probe.hoards", retry=POLICY)
    fleet.until(lambda: finished(*killers.values(), hoarder), "all killers are dead")
    probe.open("end")
    fleet.until(lambda: finished(*neighbours), "the neighbours are finished")

    for way, job in killers.items():
        assert story(job) == ["created", *LOST, *LOST, "leased", "started", "dead"]
        for loss in (*events(job, "failed"), *events(job, "dead")):
            assert loss.detail["cause"] == "crashed"
            assert loss.detail["error"]["message"] == f"the handler's process {ENDS[way]}"
        assert len(probe.notes(job, "began")) == BUDGET
        assert DeadLetter.objects.get(job=job).error_type == "ProcessEnded"
    assert story(hoarder) == ["created", *LOST, *LOST, "leased", "started", "dead"]
    assert DeadLetter.objects.get(job=hoarder).error_type == "MemoryError"
    assert [story(job) for job in neighbours] == [ONCE] * NEIGHBOURS
    assert run_by([*killers.values(), *neighbours, hoarder]) == {f"worker:{worker.worker_id}"}
    assert_at_rest()


def test_f08_what_a_killed_handler_had_started_ends_with_it(fleet, probe):
    fleet.fork_all()
    fleet.scheduler()
    processes(fleet, slots=1)
    fleet.ready()
    job = submit("probe.leaves_program")
    fleet.until(lambda: finished(job), "it is dead")
    (note,) = probe.notes(job, "program")
    fleet.until(lambda: not runs(note.attempt), "its program has ended")


def ask_to_cancel(job: UUID) -> None:
    cancel_job(shard=shard_of_id(job), job_id=job, actor="user:anna", reason="order withdrawn")


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


# F09


HANGS = {
    "threads": [("probe.hangs", "sleep"), ("probe.hangs", "loop"), ("probe.hangs_async", "sleep")],
    "processes": [("probe.hangs", "sleep"), ("probe.hangs", "loop")],
    "async": [("probe.hangs_async", way) for way in ("sleep", "loop", "deaf")],
}


@pytest.mark.parametrize("executor", HANGS)
def test_f09_the_slot_of_a_handler_that_hangs_works_again_when_its_time_is_over(fleet, executor):
    """Each way in a pool of its own, whose one worker has one slot: the next attempt needs it."""
    fleet.fork_all()
    fleet.scheduler()
    workers, jobs = [], []
    for number, _ in enumerate(HANGS[executor]):
        pool = ("--pool", f"pool-{number}", "--labels", f"way={number}")
        workers.append(fleet.worker(*pool, "--executor", executor, "--slots", "1"))
    fleet.ready()
    for number, (handler, way) in enumerate(HANGS[executor]):
        jobs.append(submit(handler, way=way, labels={"way": str(number)}))
    fleet.until(lambda: finished(*jobs), "all were tried again")
    for worker, job in zip(workers, jobs, strict=True):
        assert story(job) == ["created", *LOST, "leased", "started", "succeeded"]
        (failure,), (start, again) = events(job, "failed"), events(job, "started")
        assert failure.detail["cause"] == "timeout"
        assert seconds_between(start.at, failure.at) <= 1.0 + T_REC
        assert {start.actor, again.actor} == {f"worker:{worker.worker_id}"}
        assert (result_of(job)["pid"] == worker.pid) == (executor != "processes")
    for worker in workers:
        worker.send(signal.SIGTERM)
    assert [worker.exit_code() for worker in workers] == [0] * len(workers)
    assert_at_rest()


# Leases


def test_kf23_a_handler_that_holds_its_interpreter_keeps_its_lease_in_processes(fleet):
    fleet.fork_all()
    fleet.scheduler()
    processes(fleet, slots=1)
    fleet.ready()
    job = submit("probe.holds", seconds=3 * LEASE)
    fleet.until(lambda: finished(job), "it is finished")
    assert story(job) == ONCE
    (start,), (end,) = events(job, "started"), events(job, "succeeded")
    assert seconds_between(start.at, end.at) >= 3 * LEASE
    assert_at_rest()


@pytest.mark.parametrize("executor", ["threads", "async"])
def test_kf23_elsewhere_it_loses_its_lease_and_what_it_reports_late_is_refused(fleet, executor):
    """It is tried again, by the same worker, which goes on as if nothing had been."""
    handler = "probe.holds" if executor == "threads" else "probe.holds_async"
    fleet.fork_all()
    fleet.scheduler()
    fleet.worker("--executor", executor, "--slots", "1")
    fleet.ready()
    job = submit(handler, seconds=3 * LEASE)
    fleet.until(lambda: finished(job), "it was tried again")
    assert Job.objects.get(pk=job).status == "succeeded"
    (lost,) = events(job, "failed")
    assert lost.detail["cause"] == "lease_expired"
    assert result_of(job)["attempt"] == 2
    assert_at_rest()


def test_f06_the_process_of_a_handler_ends_itself_when_its_worker_is_frozen_beyond_the_lease(
    fleet, probe
):
    """Before anybody else may begin the job, though the handler is deaf and its worker cannot kill it."""
    fleet.fork_all()
    fleet.scheduler()
    lease = {"lease_ttl_seconds": 6.0}  # leaves the second that a busy machine may need
    frozen = processes(fleet, slots=1, **lease)
    fleet.ready()
    job = submit("probe.busy", gate="end")
    fleet.until(lambda: probe.notes(job, "busy"), "it runs")
    frozen.freeze()
    processes(fleet, slots=1, **lease)
    fleet.until(lambda: happened(job, "started", times=2), "another worker has it")
    probe.open("end")
    fleet.until(lambda: finished(job), "it is finished")
    frozen.thaw()
    after = submit()
    fleet.until(lambda: finished(after), "work goes on")
    last = max(note.at for note in probe.notes(job) if note.attempt == 1)
    (began,) = [note.at for note in probe.notes(job, "began") if note.attempt == 2]
    assert last < began, "two attempts ran at the same time"
    assert [note.attempt for note in probe.notes(job, "ended")] == [2]
    assert_at_rest()


# Async


def test_500_coroutines_wait_at_once_in_one_worker(fleet, capsys):
    count = 500
    fleet.fork_all()
    fleet.scheduler()
    worker = fleet.worker("--executor", "async", "--slots", str(count))
    fleet.ready()
    jobs = submit_many(count, "probe.awaits", seconds=1.0)
    fleet.until(lambda: finished(*jobs), "all are finished")
    moments = []
    for job in jobs:
        told = {event.kind: event for event in events(job)}
        assert list(told) == ONCE
        moments.append((told["started"].at, told["succeeded"].at))
    first, last = min(start for start, _ in moments), max(end for _, end in moments)
    together = max(
        sum(start <= moment < end for start, end in moments)
        for moment, _ in moments[:: count // 50]
    )
    with capsys.disabled():
        took = seconds_between(events(jobs[0], "created")[0].at, last)
        sys.stderr.write(
            f"\n{count} waits of 1 s: {took:.2f} s from their creation to the last end,"
            f" {seconds_between(first, last):.2f} s from the first start, {together} at once\n"
        )
    assert together >= 400
    assert seconds_between(first, last) < 10
    assert run_by(jobs) == {f"worker:{worker.worker_id}"}
    assert_at_rest()


def test_an_async_worker_that_ends_cancels_what_runs_and_gives_it_back(fleet):
    fleet.fork_all()
    fleet.scheduler()
    worker = fleet.worker("--executor", "async", "--drain-timeout", "1")
    fleet.ready()
    jobs = submit_many(20, "probe.sleeps", max_attempts=1)
    fleet.until(lambda: all(happened(job, "started") for job in jobs), "all run")
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    for job in jobs:
        (released,) = events(job, "released")
        assert released.detail["reason"] == "shutdown"
    assert_balanced()


# Processes


def test_kf53_a_second_signal_kills_what_runs_in_processes_and_gives_it_back(fleet, probe):
    fleet.fork_all()
    fleet.scheduler()
    stopped = processes(fleet, "--drain-timeout", "60", slots=2)
    fleet.ready()
    jobs = [submit("probe.busy", gate="never", max_attempts=1) for _ in range(2)]
    fleet.until(lambda: len(probe.notes(what="began")) == 2, "both run")
    family = [template_of(stopped), *children_of(stopped)]
    stopped_id = stopped.worker_id
    stopped.send(signal.SIGTERM)
    draining = Worker.objects.filter(pk=stopped_id, state="draining")
    fleet.until(draining.exists, "the first signal has arrived")
    stopped.send(signal.SIGTERM)
    assert stopped.exit_code() == 0
    assert not any(runs(one.pid) for one in family)
    for job in jobs:
        (released,) = events(job, "released")
        assert released.detail["reason"] == "shutdown"
        last = max(note.at for note in probe.notes(job))
        assert last <= released.at.timestamp() + 0.1
    assert_balanced()


def test_f01_no_process_of_a_handler_outlives_its_worker(fleet, probe):
    fleet.fork_all()
    fleet.scheduler()
    worker = processes(fleet, slots=2)
    fleet.ready()
    job = submit("probe.busy", gate="never")
    fleet.until(lambda: probe.notes(job, "busy"), "it runs")
    family = [template_of(worker), *children_of(worker)]
    assert len(family) == 3
    worker.kill()
    fleet.until(lambda: not any(runs(one.pid) for one in family), "all have ended")
    probe.open("never")
    processes(fleet, slots=1)
    fleet.until(lambda: finished(job), "another worker has finished it")
    assert_at_rest()


def test_the_end_of_the_template_costs_the_attempts_that_ran_and_a_new_one_takes_its_place(
    fleet, probe
):
    fleet.fork_all()
    fleet.scheduler()
    worker = processes(fleet, slots=2)
    fleet.ready()
    job = submit(gate="end")
    fleet.until(lambda: probe.notes(job, "began"), "it runs")
    template_of(worker).kill()
    fleet.until(lambda: happened(job, "failed"), "its attempt is lost")
    probe.open("end")
    fleet.until(lambda: finished(job), "it was tried again")
    assert story(job) == ["created", *LOST, "leased", "started", "succeeded"]
    assert run_by([job]) == {f"worker:{worker.worker_id}"}
    assert_at_rest()


def test_kf31_cancel_and_progress_pass_between_a_worker_and_the_process_of_a_handler(fleet, probe):
    fleet.fork_all()
    fleet.scheduler()
    processes(fleet, slots=2)
    fleet.ready()
    heeds, counts = submit("probe.heed", gate="never"), submit("probe.counts", gate="end")
    fleet.until(lambda: len(probe.notes(what="began")) == 2, "both run")
    progressed = Lease.objects.filter(job=counts, progress__isnull=False)
    fleet.until(progressed.exists, "progress is stored")
    ask_to_cancel(heeds)
    fleet.until(lambda: finished(heeds), "it has stopped")
    assert Job.objects.get(pk=heeds).status == "cancelled"
    probe.open("end")
    fleet.until(lambda: finished(counts), "the other is finished")
    assert_at_rest()


def test_a_transactional_handler_commits_in_its_own_process_with_its_completion(fleet):
    fleet.fork_all()
    fleet.scheduler()
    worker = processes(fleet, slots=1)
    fleet.ready()
    job = submit("probe.books")
    fleet.until(lambda: finished(job), "it is finished")
    assert story(job) == ["created", *LOST, "leased", "started", "succeeded"]
    booked = Tenant.objects.filter(slug__startswith="booked")
    assert [one.slug for one in booked] == ["booked-2"]
    assert result_of(job)["pid"] != worker.pid
    after = submit()
    fleet.until(lambda: finished(after), "the slot works again")
    assert_at_rest()


def test_kf31_a_coroutine_that_hears_of_no_cancel_is_cancelled_all_the_same(fleet):
    fleet.fork_all()
    fleet.scheduler(), fleet.worker("--executor", "async")
    fleet.ready()
    job = submit("probe.sleeps")
    fleet.until(lambda: happened(job, "started"), "it runs")
    ask_to_cancel(job)
    fleet.until(lambda: finished(job), "it has stopped")
    assert story(job) == ["created", "leased", "started", "cancel_requested", "cancelled"]
    assert_at_rest()


def test_s28_handlers_in_processes_see_no_secret_and_can_still_use_the_database(fleet):
    fleet.fork_all()
    fleet.scheduler()
    given = {"DUEKEEPER_SECRET_KEY": "top-secret", "AWS_SECRET_ACCESS_KEY": "k", "SHOP_URL": "u"}
    fleet.worker("--executor", "processes", "--pass-env", "SHOP_URL", **given)
    fleet.ready()
    job = submit("probe.environment")
    fleet.until(lambda: finished(job), "it is finished")
    result = result_of(job)
    assert result["one"] == 1
    assert {"PATH", "SHOP_URL", "DJANGO_SETTINGS_MODULE"} <= {*result["names"]}
    assert not {"DATABASE_URL", "PROBE_FOLDER", *given} - {"SHOP_URL"} & {*result["names"]}


def test_a_child_is_replaced_after_an_attempt_that_left_much_in_memory(fleet):
    fleet.fork_all()
    fleet.scheduler()
    processes(fleet, "--max-memory-mb", str(MEMORY_MB), slots=1)
    fleet.ready()
    small = [submit("probe.keeps", mebibytes=1) for _ in range(1)]
    fleet.until(lambda: finished(*small), "the first is finished")
    large = submit("probe.keeps", mebibytes=320)
    fleet.until(lambda: finished(large), "the large one is finished")
    after = submit("probe.keeps", mebibytes=1)
    fleet.until(lambda: finished(after), "the last is finished")
    pids = [result_of(job)["pid"] for job in (*small, large, after)]
    assert pids[0] == pids[1] != pids[2]


# How a worker of any kind ends


@pytest.mark.parametrize("executor", ["threads", "async", "processes"])
def test_a_worker_ends_after_so_many_attempts(fleet, executor):
    fleet.fork_all()
    fleet.scheduler()
    worker = fleet.worker("--executor", executor, "--slots", "2", "--max-jobs", "3")
    worker.may_end = True
    fleet.ready()
    jobs = submit_many(5, "probe.awaits", seconds=0.0)
    assert worker.exit_code() == 0
    assert Job.objects.filter(pk__in=jobs, status="succeeded").count() == 3
    assert_balanced()


@pytest.mark.parametrize("executor", ["threads", "async"])
def test_a_worker_ends_by_a_drain_once_its_process_has_too_much_in_memory(fleet, executor):
    fleet.fork_all()
    fleet.scheduler()
    worker = fleet.worker("--executor", executor, "--slots", "2", "--max-memory-mb", "300")
    worker.may_end = True
    fleet.ready()
    job = submit("probe.keeps_async", mebibytes=300)
    assert worker.exit_code() == 0
    assert story(job) == ONCE
    assert "worker.recycled" in worker.log.read_text()


@pytest.mark.parametrize(
    ("apps", "flags", "told"),
    [
        ("examples.shop", ["--executor", "async"], "coroutines"),
        ("tests.process.probes", ["--executor", "processes", "--max-memory-mb", "20"], "at least"),
        ("tests.process.probes", ["--max-memory-mb", "20"], "already"),
    ],
    ids=["no coroutine", "no room for processes", "no room"],
)
def test_an_executor_that_cannot_work_is_wrong_configuration(
    committed, database_url, apps, flags, told
):
    ended = subprocess.run(
        [sys.executable, "manage.py", "runworker", *flags],
        cwd=ROOT,
        env={**environment(database_url), "DUEKEEPER_APPS": apps},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 78, ended.stderr
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
