"""Who may call what: tokens, scopes, and what does not count as either."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from jobs.api.urls import operation
from jobs.api.views import ApiView
from jobs.errors import InvalidField
from jobs.models import ApiToken, Calendar, Job, Schedule, Tenant
from jobs.policies.tokens import mint
from jobs.services.credentials import SCOPES, create_token
from jobs.services.schedules import pause_schedule
from jobs.states import JobStatus
from tests.api.caller import JOBS, REQUEST, Caller, assert_problem, call
from tests.factories import make_job, make_schedule, make_tenant


def api_routes(
    patterns: Any = None, prefix: str = "/", below_api: bool = False
) -> list[tuple[str, Any]]:
    """Every (path, view function) below /api/, however deep it is included."""
    found: list[tuple[str, Any]] = []
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            found += api_routes(pattern.url_patterns, path)
        elif isinstance(pattern, URLPattern) and path.startswith("/api/"):
            found.append((path, pattern.callback))
    return found


OPERATIONS = [
    (method, path, scope)
    for path, view in api_routes()
    for method, scope in view.view_class.scopes.items()
]


NEW_SCHEDULE = {"name": "weekly", "cron": "@weekly", "job": {"handler": "billing.charge"}}
BODIES: dict[str, Any] = {  # by the end of the path
    "/cancel": {"reason": "x"},
    "/pause": {"reason": "x"},
    "/resume": {},
    "/trigger": {},
    "/preview": {"cron": "@weekly"},
    "/schedules": NEW_SCHEDULE,
    "/catch-up": {"from": "2026-01-01T00:00:00Z", "until": "2026-01-01T02:00:00Z"},
    "/calendars": {"name": "other", "days": {"2027-12-25": "Christmas"}},
    "/works": {"weekend": ["sun"]},
}
CALENDAR = "works"  # of the one tenant whose things are asked for


def sample(path: str, job: Job, schedule: Schedule | None = None) -> str:
    schedule_id = "" if schedule is None else str(schedule.pk)
    path = path.replace("<str:job_id>", str(job.pk)).replace("<path:name>", CALENDAR)
    return path.replace("<str:schedule_id>", schedule_id)


def body_of(method: str, path: str) -> Any:
    if method in ("POST", "PUT"):
        return BODIES.get(f"/{path.rpartition('/')[2]}", REQUEST)
    return {} if method == "PATCH" else None


def a_schedule(owner: Caller, path: str) -> Schedule:
    schedule = make_schedule(tenant=owner.tenant)
    make_calendar(owner.tenant)
    if path.endswith("/resume"):
        who: dict[str, Any] = {
            "tenant": owner.tenant,
            "schedule_id": schedule.pk,
            "actor": "user:anna",
        }
        pause_schedule(**who, reason="billing run")
    return schedule


def make_calendar(tenant: Tenant) -> None:
    Calendar.objects.create(tenant=tenant, name=CALENDAR, weekend=["sat", "sun"])


def test_s03_every_route_below_api_goes_through_the_one_base_class():
    routes = api_routes()
    assert {path for path, _ in routes} >= {"/api/v1/jobs", "/api/v1/jobs/<str:job_id>"}
    for path, view in routes:
        assert issubclass(view.view_class, ApiView), path
        assert view.view_class.initial is ApiView.initial, path


@pytest.mark.parametrize(("method", "path", "scope"), OPERATIONS)
def test_s02_every_operation_needs_its_scope_and_no_other_opens_it(owner, method, path, scope):
    path = sample(path, make_job(tenant=owner.tenant), a_schedule(owner, path))
    body = body_of(method, path)
    for other in sorted(SCOPES - {scope}):
        answer = Caller(owner.tenant, scopes=[other]).call(method, path, body)
        assert assert_problem(answer, 403, "scope_missing")["scope"] == scope
        assert f'scope="{scope}"' in answer.headers["WWW-Authenticate"]
    everything_else = Caller(owner.tenant, scopes=SCOPES - {scope})
    assert_problem(everything_else.call(method, path, body), 403, "scope_missing")
    assert_problem(Caller(owner.tenant, scopes=[]).call(method, path, body), 403, "scope_missing")
    seen = {"If-Match": '"v1"'} if method in ("PUT", "PATCH", "DELETE") else {}
    allowed = Caller(owner.tenant, scopes=[scope]).call(method, path, body, headers=seen)
    assert allowed.status < 300


@pytest.mark.parametrize(
    "scopes", [None, "jobs:write", {"jobs:write": True}, [["jobs:write"]], ["jobs"], ["*"]]
)
def test_s02_scopes_that_are_not_a_list_of_exact_names_open_nothing(owner, scopes):
    ApiToken.objects.filter(pk=owner.token.pk).update(scopes=scopes if scopes is not None else [])
    assert_problem(owner.create(), 403, "scope_missing")


def test_s02_a_view_without_a_scope_for_each_method_does_not_come_up():
    def get(self, request):
        raise AssertionError

    with pytest.raises(TypeError, match="scopes must name exactly"):
        type("Open", (ApiView,), {"get": get})
    with pytest.raises(TypeError, match="scopes must name exactly"):
        type("HalfOpen", (ApiView,), {"get": get, "post": get, "scopes": {"GET": "jobs:read"}})
    with pytest.raises(TypeError, match="unknown scopes"):
        type("Odd", (ApiView,), {"get": get, "scopes": {"GET": "jobs:everything"}})


def test_s02_a_route_to_any_other_view_does_not_come_up():
    from django.views import View

    with pytest.raises(TypeError, match="not an ApiView"):
        operation("open", View, "open")  # type: ignore[arg-type]


def test_s02_a_token_reaches_its_own_tenant_only(owner, stranger):
    job, schedule = make_job(tenant=owner.tenant), make_schedule(tenant=owner.tenant)
    make_calendar(owner.tenant)
    for method, path, _ in OPERATIONS:
        if ":" in path:
            there = sample(path, job, schedule)
            answer = stranger.call(
                method, there, body_of(method, there), headers={"If-Match": '"v1"'}
            )
            assert_problem(answer, 404, "not_found")


@pytest.mark.parametrize(
    "header",
    [None, "", "Basic dXNlcjpwYXNz", "Token abc", "dk_live_x", "Bearerdk_live_x"],
)
def test_a_request_without_a_bearer_token_is_told_what_to_send(owner, header):
    answer = call(
        "POST", JOBS, REQUEST, headers={"Authorization": header} if header is not None else {}
    )
    assert_problem(answer, 401, "token_missing")
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="duekeeper"'


def test_a_damaged_token_is_refused_without_a_query(owner, django_assert_num_queries):
    texts = ["", "x", owner.text[:-1], owner.text + "x", owner.text.swapcase(), f"{owner.text} x"]
    middle = len(owner.text) // 2
    texts.append(
        owner.text[:middle]
        + ("a" if owner.text[middle] != "a" else "b")
        + owner.text[middle + 1 :]
    )
    with django_assert_num_queries(0):
        for text in texts:
            answer = call("POST", JOBS, REQUEST, headers={"Authorization": f"Bearer {text}"})
            assert_problem(answer, 401, "token_invalid")
            assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]


def test_the_scheme_is_read_in_any_case(owner):
    for scheme in ("bearer", "BEARER"):
        headers = {"Authorization": f"{scheme} {owner.text}"}
        assert call("POST", JOBS, REQUEST, headers=headers).status == 201


def test_a_token_that_was_never_stored_and_one_with_another_secret_look_the_same(owner):
    unknown = mint("live").text
    other = mint("live")
    ApiToken.objects.filter(pk=owner.token.pk).update(secret_hash=other.secret_hash)
    answers = [
        call("POST", JOBS, REQUEST, headers={"Authorization": f"Bearer {text}"})
        for text in (unknown, owner.text)
    ]
    bodies = [{**assert_problem(a, 401, "token_invalid"), "instance": None} for a in answers]
    assert bodies[0] == bodies[1]


def test_secrets_are_compared_in_constant_time(owner, monkeypatch):
    compared = []

    def watch(stored, presented):
        compared.append((len(stored), len(presented)))
        return False

    monkeypatch.setattr("jobs.policies.tokens.matches", watch)
    unknown = mint("live").text
    for text in (owner.text, unknown):  # also when there is no such token
        assert call("GET", f"{JOBS}/x", headers={"Authorization": f"Bearer {text}"}).status == 401
    assert compared == [(32, 32), (32, 32)]


def test_an_expired_token_says_so_and_a_wrong_secret_does_not(owner):
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert_problem(owner.create(), 401, "token_expired")
    ApiToken.objects.update(secret_hash=mint("live").secret_hash)
    assert_problem(owner.create(), 401, "token_invalid")


def test_a_revoked_token_is_refused_at_once(owner):
    assert owner.create().status == 201
    ApiToken.objects.update(revoked_at=timezone.now())
    assert_problem(owner.create(), 401, "token_invalid")


def test_a_token_to_be_revoked_later_works_until_then(owner):
    ApiToken.objects.update(revoked_at=timezone.now() + timedelta(hours=1))
    assert owner.create().status == 201


def test_s08_cookies_and_sessions_mean_nothing(owner):
    browser = Client(raise_request_exception=False)
    browser.force_login(User.objects.create_superuser("root"))
    job, schedule = make_job(tenant=owner.tenant), make_schedule(cron="0 0 29 2 *")
    for method, path, _ in OPERATIONS:
        answer = call(method, sample(path, job, schedule), {"reason": "x"}, client=browser)
        assert_problem(answer, 401, "token_missing")
    browser.cookies["Authorization"] = f"Bearer {owner.text}"
    assert_problem(call("POST", JOBS, REQUEST, client=browser), 401, "token_missing")
    assert Job.objects.count() == 1


def test_s08_a_token_in_the_address_or_the_body_means_nothing(owner):
    assert_problem(
        call("POST", f"{JOBS}?access_token={owner.text}", REQUEST), 401, "token_missing"
    )
    body = {**REQUEST, "access_token": owner.text}
    assert_problem(call("POST", JOBS, body), 401, "token_missing")


def test_s08_no_session_is_read_or_set_and_no_csrf_token_is_needed(owner):
    strict = Client(enforce_csrf_checks=True, raise_request_exception=False)
    headers = {"Authorization": f"Bearer {owner.text}"}
    assert call("POST", JOBS, REQUEST, headers=headers, client=strict).status == 201
    assert not strict.cookies


def test_s08_nothing_changes_by_get(owner):
    job, schedule = make_job(tenant=owner.tenant), make_schedule(cron="0 0 29 2 *")
    for path, view in api_routes():
        if "GET" not in view.view_class.scopes:
            for method in ("GET", "HEAD"):
                answer = owner.call(method, sample(path, job, schedule))
                assert answer.status == 405
                assert answer.headers["Allow"] == ", ".join(view.view_class.scopes)
    job.refresh_from_db()
    assert (job.status, Job.objects.count()) == (JobStatus.SCHEDULED, 1)


def test_a_created_token_can_be_used_and_only_its_hash_is_stored(db):
    tenant = make_tenant()
    token, text = create_token(
        tenant, "ci", ["jobs:write", "jobs:read", "jobs:read"], "user:anna", "test"
    )
    assert text.startswith(f"dk_test_{token.pk}_")
    stored = ApiToken.objects.get()
    assert (stored.tenant, stored.name, stored.created_by) == (tenant, "ci", "user:anna")
    assert stored.scopes == ["jobs:read", "jobs:write"]
    assert text.endswith(stored.last4)
    row = repr(ApiToken.objects.values_list().get())
    secret = text.removeprefix(f"dk_test_{token.pk}_")[:43]
    assert secret not in row
    assert stored.expires_at is not None
    assert abs(stored.expires_at - timezone.now() - timedelta(days=365)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"scopes": ["jobs:read", "jobs:*"]}, "/scopes"),
        ({"name": ""}, "/name"),
        ({"name": "x" * 101}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"expires_at": timezone.now() - timedelta(days=1)}, "/expires_at"),
        ({"expires_at": timezone.now().replace(tzinfo=None)}, "/expires_at"),
    ],
)
def test_a_token_that_would_not_do_what_was_asked_is_not_created(db, change, pointer):
    wanted = {"name": "ci", "scopes": ["jobs:read"], "created_by": "user:anna", **change}
    with pytest.raises(InvalidField) as refused:
        create_token(make_tenant(), **wanted)
    assert refused.value.pointer == pointer
    assert not ApiToken.objects.exists()
