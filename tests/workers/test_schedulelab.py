"""manage.py schedulelab: an arrival file, settings as stored and as tried, a table."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Job, Lane, Reserve
from jobs.queries.catalog import forget
from tests.factories import make_pool, make_tenant, make_worker

pytestmark = pytest.mark.django_db


@pytest.fixture
def arrivals(tmp_path: Path) -> Path:
    """One slot: urgent work of a second each second, and one background job at the beginning."""
    make_worker(make_pool(), slots=1)
    make_tenant("acme")
    file = tmp_path / "day.ndjson"
    lines = [{"at": n, "seconds": 1, "tenant": "acme", "lane": "urgent"} for n in range(900)]
    lines.append({"at": 0.5, "seconds": 1, "tenant": "acme", "lane": "background"})
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    return file


def lab(file: Path, *options: str) -> dict[str, Any]:
    out = StringIO()
    call_command("schedulelab", str(file), "--overhead", "0", "--json", *options, stdout=out)
    report: dict[str, Any] = json.loads(out.getvalue())
    return report


def test_it_shows_what_other_head_starts_and_reserves_would_do_and_saves_nothing(arrivals):
    report = lab(arrivals)
    assert report["arrivals"] == 901
    assert "tried" not in report
    assert report["stored"]["lanes"]["background"]["max"] == pytest.approx(600, abs=2)

    sooner = lab(arrivals, "--head-start", "urgent=100")
    assert sooner["tried"]["lanes"]["background"]["max"] == pytest.approx(100, abs=2)
    assert sooner["stored"] == report["stored"]

    two_slots = lab(arrivals, "--slots", "default=2", "--reserve", "default/background=1")
    assert two_slots["tried"]["lanes"]["background"]["max"] <= 1
    assert Lane.objects.get(name="urgent").head_start_seconds == 600
    assert not Reserve.objects.exists()
    assert not Job.objects.exists()


def test_the_table_names_lanes_and_tenants(arrivals):
    out = StringIO()
    call_command("schedulelab", str(arrivals), "--weight", "acme=3", stdout=out)
    told = out.getvalue()
    assert "stored: p50" in told
    assert "tried: p50" in told
    assert "background" in told
    assert "acme" in told


def test_arrivals_that_no_pool_may_run_are_counted(arrivals):
    with arrivals.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"at": 1, "seconds": 1, "labels": {"region": "mars"}}) + "\n")
    assert lab(arrivals)["no_pool"] == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 902"),
        ("[]", "must be an object"),
        ('{"at": 1}', "seconds: must be a number"),
        ('{"at": -1, "seconds": 1}', "at: must be from 0"),
        ('{"at": NaN, "seconds": 1}', "at: must be from 0"),
        ('{"at": 1, "seconds": 1, "lane": "vip"}', "lane: must be one of urgent"),
        ('{"at": 1, "seconds": 1, "priority": 101}', "priority: must be from -100 to 100"),
        ('{"at": 1, "seconds": 1, "colour": "red"}', "unknown field 'colour'"),
        ('{"at": 1, "seconds": 1, "labels": 7}', "labels: must be an object"),
    ],
    ids=["json", "list", "no seconds", "negative", "nan", "lane", "priority", "field", "labels"],
)
def test_a_line_that_cannot_be_read_is_named(arrivals, line, told):
    text = arrivals.read_text(encoding="utf-8").rstrip("\n")
    arrivals.write_text(f"{text}\n{line}\n", encoding="utf-8")
    with pytest.raises(CommandError, match="line 902") as refused:
        lab(arrivals)
    assert told in str(refused.value)
    assert refused.value.returncode == 2


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--head-start", "vip=3"),
        ("--head-start", "urgent=-1"),
        ("--head-start", "urgent=nan"),
        ("--weight", "acme"),
        ("--reserve", "default=3"),
        ("--reserve", "nowhere/urgent=3"),
        ("--slots", "default=0"),
    ],
)
def test_an_option_that_cannot_be_read_is_named(arrivals, flag, value):
    forget()
    with pytest.raises(CommandError, match=f"{flag} {value}"):
        lab(arrivals, flag, value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CommandError, match=r"nowhere\.ndjson"):
        lab(tmp_path / "nowhere.ndjson")
