"""What the layout promises: one place that writes each thing, a test for each transition, documents that are fresh."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from inspect import getmembers, isfunction, signature
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from jobs.errors import NotFound, TransitionRefused
from jobs.failpoints import COMMITS
from jobs.models import Job
from jobs.states import TRANSITIONS, EventKind, JobStatus, Place, Transition
from tests.support.moves import MOVES
from tests.support.places import Standing, Start, check_books, place_of, stand, story

ROOT = Path(__file__).resolve().parent.parent
TRANSITION_MODULES = sorted((ROOT / "jobs/transitions").glob("*.py"))

# Modules of jobs/transitions that hold pieces of statements, and functions that move no job.
PIECES = {"__init__", "events", "ledger", "limits", "statements"}
MOVE_NOTHING = {
    "lease.extend_leases",
    "finish.reject_completion",
    "unpark.unpark_jobs",
    "withdraw.let_late_jobs",
}


# Who writes

# A migration of data may write rows; a benchmark measures the same work in SQL of its own; tests arrange rows.
PRODUCT = sorted(
    path
    for folder in ("jobs", "workers", "scheduler_site", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if not {"migrations", "transitions"} & set(path.relative_to(ROOT).parts)
)
GUARDED = {"Job", "DueEntry", "Lease", "JobEvent", "DeadLetter"}
WRITERS = {
    *("create", "acreate", "bulk_create", "abulk_create", "get_or_create", "update_or_create"),
    *("update", "aupdate", "bulk_update", "delete", "adelete", "save", "asave", "save_base"),
}
SQL_WRITE = re.compile(
    r"\b(?:insert\s+into|update|delete\s+from|merge\s+into|truncate(?:\s+table)?|copy)\s+(?:only\s+)?"
    r'"?jobs_(job|dueentry|lease|jobevent|deadletter)\w*"?',
    re.IGNORECASE,
)


def writes_in(source: str) -> list[str]:
    """Places in a module where a guarded row is written through the ORM or by SQL text: "line: what"."""
    tree = ast.parse(source)
    rows = set(GUARDED)
    for _ in range(2):  # a name bound to a queryset or row of a guarded model is guarded as well
        for node in ast.walk(tree):
            for target, value in bindings(node):
                if isinstance(target, ast.Name) and root_of(value) in rows:
                    rows.add(target.id)
    return sorted({f"{line}: {what}" for line, what in found_writes(tree, rows)})


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield target, value


def root_of(node: ast.expr) -> str:
    """The name at the left end of `name.attribute(…)[…]`."""
    while True:
        match node:
            case ast.Name(id=name):
                return name
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Await(value=inner):
                node = inner
            case ast.Call(func=ast.Name(id=name)) if name not in GUARDED:
                return ""
            case ast.Call(func=inner):
                node = inner
            case _:
                return ""


def found_writes(tree: ast.Module, rows: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method) as function):
                if method in WRITERS and root_of(function) in rows:
                    yield node.lineno, f"{root_of(function)}…{method}()"
            case ast.Call(func=ast.Name(id="insert_event")):
                yield node.lineno, "insert_event()"
            case ast.Assign(targets=[ast.Attribute(attr="status") as target]):
                if root_of(target) in rows:
                    yield node.lineno, "status ="
            case ast.Constant(value=str(text)) if found := SQL_WRITE.search(text):
                yield node.lineno, found.group()
            case ast.JoinedStr(values=values):
                text = "".join(str(getattr(part, "value", "x")) for part in values)
                if found := SQL_WRITE.search(text):
                    yield node.lineno, found.group()


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_transitions_write_jobs_due_entries_leases_dead_letters_and_events(path):
    assert writes_in(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "Job.objects.filter(pk=1).update(status='dead')",
        "Job.objects.create(id=1)",
        "Job(id=1).save()",
        "JobEvent.objects.bulk_create([])",
        "Lease.objects.in_shards(s).expired(t).delete()",
        "due = DueEntry.objects.due()\ndue.filter(x=1).delete()",
        "for job in Job.objects.all():\n    job.save(update_fields=['status'])",
        "job = Job.objects.get(pk=1)\njob.status = 'dead'",
        "if lease := Lease.objects.first():\n    lease.delete()",
        "[lease.delete() for lease in Lease.objects.all()]",
        "async def f():\n    await Job.objects.filter(pk=1).aupdate(seq=1)",
        "cursor.execute('update jobs_job set status = %s', [s])",
        "SQL = f'with x as (delete from  jobs_lease where {guard}) select 1'",
        "SQL = '''\nINSERT INTO \"jobs_jobevent\" (id) values (1)'''",
        "SQL = 'truncate table jobs_dueentry'",
        "SQL = 'delete from jobs_jobevent_20261130'",
        "SQL = insert_event(source='x', kind=k, start=s, end=e)",
    ],
)
def test_the_search_for_writers_finds(line):
    assert writes_in(line)


@pytest.mark.parametrize(
    "line",
    [
        "Job.objects.filter(pk=1).values('status')",
        "Worker.objects.filter(pk=1).update(state='stopped')",
        "cursor.execute('select status from jobs_job where id = 1 for update')",
        "values = {}\nvalues.update(a=1)",
        "counts = dict(Lease.objects.values_list('pool', 'seq'))\ncounts.update(a=1)",
        "cancel_job(shard=1, job_id=job.pk)",
    ],
)
def test_the_search_for_writers_lets_pass(line):
    assert writes_in(line) == []


# Who commits

ENGINE = sorted(
    path
    for folder in ("jobs/transitions", "jobs/services", "workers")
    for path in (ROOT / folder).glob("*.py")
)
MARKS = {"commits", "commits_once", "atomically"}
ANY_TABLE = re.compile(
    r"\b(?:insert\s+into|update|delete\s+from)\s+jobs_\w+|jobs_ensure_", re.IGNORECASE
)
# Statements that are made here and sent by others, under their mark; and a transaction that only reads.
NO_COMMITS = {"statements", "events", "ledger", "limits", "verifying"}


def unmarked_commits(source: str) -> list[str]:
    """Functions that write rows outside a registered commit: neither marked themselves, nor called by marked ones only."""
    tree = ast.parse(source)
    models = models_imported(tree)
    functions = {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    marked = {name for name, node in functions.items() if marks_of(node) & MARKS}
    texts = {
        target.id
        for node in tree.body
        for target, value in bindings(node)
        if isinstance(target, ast.Name) and writes_text(value)
    }
    writers = {name for name, node in functions.items() if sends_write(node, models, texts)}
    callers: dict[str, set[str]] = {name: set() for name in functions}
    for caller, node in functions.items():
        for used in names_in(node) & functions.keys() - {caller}:
            callers[used].add(caller)
    covered = set(marked)
    for _ in functions:
        covered |= {
            name for name, by in callers.items() if by and by <= covered and name[0] == "_"
        }
    return sorted(writers - covered)


def models_imported(tree: ast.Module) -> set[str]:
    return {
        name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jobs.models")
        for name in node.names
    }


def marks_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)}


def names_in(node: ast.AST) -> set[str]:
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def writes_text(node: ast.AST) -> bool:
    """True for SQL that writes, and for a LeaseEnd, which is one."""
    texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
    is_sql = any(isinstance(text, str) and ANY_TABLE.search(text) for text in texts)
    return is_sql or "LeaseEnd" in names_in(node)


def sends_write(node: ast.AST, models: set[str], texts: set[str]) -> bool:
    rows = set(models)
    for one in ast.walk(node):
        for target, value in bindings(one):
            if isinstance(target, ast.Name) and root_of(value) in rows:
                rows.add(target.id)
    orm = any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in WRITERS
        and root_of(one.func) in rows
        for one in ast.walk(node)
    )
    sql = any(
        isinstance(one, ast.Constant)
        and isinstance(one.value, str)
        and ANY_TABLE.search(one.value)
        for one in ast.walk(node)
    )
    return orm or sql or bool(names_in(node) & (texts | {"atomic"}))


@pytest.mark.parametrize("path", ENGINE, ids=lambda path: str(path.relative_to(ROOT)))
def test_f03_the_engine_writes_in_registered_commits_only(path):
    if path.stem not in NO_COMMITS:
        assert unmarked_commits(path.read_text()) == []


def test_f03_every_transition_is_a_registered_commit():
    assert public_functions().keys() <= COMMITS


def test_f03_what_is_sent_by_others_is_sent_by_transitions_only():
    elsewhere = [
        str(path.relative_to(ROOT))
        for path in PRODUCT
        if {"end_leases", "insert_event"} & names_in(ast.parse(path.read_text()))
    ]
    assert elsewhere == []


@pytest.mark.parametrize(
    "source",
    [
        "from jobs.models import Worker\ndef stop(one):\n    Worker.objects.filter(pk=one).update(state='x')",
        "from jobs.models import Pool\ndef make():\n    return Pool.objects.get_or_create(name='x')",
        "from jobs.models import Job\ndef f():\n    job = Job.objects.get()\n    job.save()",
        "SQL = 'update jobs_shard set owner = null'\ndef give_up():\n    rows(SQL, {})",
        "SQL = LeaseEnd(guard=HELD).sql()\ndef end():\n    end_leases(SQL)",
        "def end():\n    rows('delete from jobs_lease', {})",
        "def run(handler):\n    with transaction.atomic():\n        handler()",
        # a helper of which one caller is not marked
        "from jobs.models import Job\ndef _help():\n    Job.objects.all().delete()\n"
        "@commits\ndef one():\n    _help()\ndef two():\n    _help()",
        # a helper that anybody may import
        "from jobs.models import Job\ndef help():\n    Job.objects.all().delete()\n@commits\ndef one():\n    help()",
    ],
)
def test_the_search_for_commits_finds(source):
    assert unmarked_commits(source)


@pytest.mark.parametrize(
    "source",
    [
        "SQL = 'select 1 from jobs_job for update'\ndef look():\n    rows(SQL, {})",
        "from jobs.models import Job\n@commits\ndef f():\n    Job.objects.all().delete()",
        "from jobs.models import Job\nclass A:\n    @atomically\n    def f(self):\n        self._g()\n"
        "    def _g(self):\n        Job.objects.create()",
        "def f(values):\n    values.update(a=1)",
    ],
)
def test_the_search_for_commits_lets_pass(source):
    assert unmarked_commits(source) == []


# The table of transitions


def public_functions() -> dict[str, Any]:
    """ "module.name" → function, for what callers may use of jobs/transitions."""
    found: dict[str, Any] = {}
    for path in TRANSITION_MODULES:
        if path.stem in PIECES:
            continue
        module = import_module(f"jobs.transitions.{path.stem}")
        for name, function in getmembers(module, isfunction):
            inside = function.__module__ == module.__name__
            if inside and not name.startswith("_"):
                found[f"{path.stem}.{name}"] = function
    return found


def test_the_table_names_every_function_that_moves_a_job_and_no_other():
    named = {move.function for move in TRANSITIONS}
    assert named == public_functions().keys() - MOVE_NOTHING
    assert public_functions().keys() >= MOVE_NOTHING


def test_no_move_is_listed_twice():
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)


def test_every_event_kind_is_written_by_some_move_or_tells_of_a_refusal():
    assert {move.event for move in TRANSITIONS} == set(EventKind) - {EventKind.COMPLETION_REJECTED}


def test_every_place_and_every_status_can_be_reached():
    assert {move.end for move in TRANSITIONS} == set(Place) - {Place.NOWHERE}
    assert {move.start for move in TRANSITIONS} == set(Place) - {Place.FINISHED}
    assert {move.status for move in TRANSITIONS} == set(JobStatus)


@pytest.mark.parametrize("function", sorted(public_functions()))
def test_every_transition_has_a_test_file(function):
    module, name = function.split(".")
    files = sorted((ROOT / "tests/transitions").glob("test_*.py"))
    named = {path.stem for path in files if name in path.read_text()}
    assert any(stem.startswith((f"test_{module}", f"test_{name}")) for stem in named)


@pytest.mark.parametrize("function", sorted(public_functions()))
def test_every_transition_takes_the_time_and_is_called_by_keyword(function):
    parameters = signature(public_functions()[function]).parameters
    assert "now" in parameters
    positional = [name for name, each in parameters.items() if each.kind is not each.KEYWORD_ONLY]
    assert positional in ([], ["jobs"])


@pytest.mark.django_db
@pytest.mark.parametrize("function", MOVES)
def test_a_function_makes_the_moves_of_the_table_and_no_other(function):
    made = set()
    for start in Start:
        for call in MOVES[function]:
            with transaction.atomic():
                made |= moves_made(function, call, stand(start, bystanders=False))
                transaction.set_rollback(True)
    assert made == {move for move in TRANSITIONS if move.function == function}


def test_every_function_of_the_table_is_tried():
    assert {move.function for move in TRANSITIONS} == set(MOVES)


def moves_made(function: str, call: Callable[[Standing], object], it: Standing) -> set[Transition]:
    """What really happens when the function is called on a job in this place."""
    before, told = place_of(it.job_id), len(story(it.job_id))
    with suppress(TransitionRefused, NotFound):
        call(it)
    check_books()
    after, events = place_of(it.job_id), story(it.job_id)[told:]
    if not events:
        assert after is before
        return set()
    (event,) = events
    status = JobStatus(Job.objects.get(pk=it.job_id).status)
    return {Transition(before, function, after, status, EventKind(event.kind))}


# Documents


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    """The names of the script behind `make docs`."""
    return runpy.run_path(str(ROOT / ".ci/docs.py"), run_name="documents")


def test_the_diagram_of_states_is_fresh(documents):
    assert (ROOT / "docs/state-machine.md").read_text() == documents["state_machine"]()


def test_the_table_of_faults_names_every_test_of_a_fault(documents):
    text = (ROOT / "docs/faults.md").read_text()
    rows = {row[1]: row[0] for row in documents["FAULT"].finditer(text)}
    tests = documents["tests_by_fault"]()
    assert tests.keys() <= rows.keys(), "write a row in docs/faults.md"
    wrong = {
        fault: tests.get(fault, documents["NO_TEST"])
        for fault, row in rows.items()
        if not row.endswith(f"| {', '.join(tests.get(fault, [documents['NO_TEST']]))} |")
    }
    assert wrong == {}, "run `make docs`"
    assert len(rows) == len(re.findall(r"^\| [A-Z]+-?\d+ ", text, re.MULTILINE)), "a row twice"


def test_the_name_of_a_test_tells_its_faults(documents):
    found = documents["TEST"].findall(
        "def test_kf18_a():\n    async def test_f15_kf22_b():\n\ndef test_s_x():\ndef test_i18n_y():\n"
    )
    assert found == ["_kf18", "_f15_kf22"]
