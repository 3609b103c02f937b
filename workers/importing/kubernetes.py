"""Kubernetes manifests → entries for their CronJobs. Pure; nothing is asked of a cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

from jobs.errors import InvalidField
from jobs.policies.cron import ALIASES, parse_cron
from jobs.policies.times import format_time
from jobs.policies.zones import parse_zone
from workers.importing.cron_meaning import LITERAL, literal_dst
from workers.importing.entries import Context, Entry, Finding, Kind, Notice, Reading, Zone
from workers.importing.manifests import Document, documents

VERSIONS = ("batch/v1", "batch/v1beta1")
ON_RUNNING = {"Allow": "allow", "Forbid": "skip", "Replace": "cancel_running"}
DEFAULT_BACKOFF = 6
MOST_TIMEOUT = 86_400
MOST_GRACE = 366 * 86_400
_PREFIX = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)", re.DOTALL)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|h|m|s)")
_UNIT_MS = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}


class _Refused(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.finding = Finding(code, text)


def read_manifests(text: str, *, place: str, context: Context) -> Reading:
    """All CronJobs of a file of one or many YAML documents; one that cannot be read stops no other."""
    reading = Reading()
    others: dict[str, int] = {}
    for document in documents(text):
        if document.fault:
            where = f"{place}:{document.line}"
            reading.notices.append(Notice(where, "bad_yaml", document.fault, wrong=True))
            continue
        for item in _items(document.value):
            kind = item.get("kind") if isinstance(item, Mapping) else None
            if kind == "CronJob":
                reading.entries.append(_entry(item, document, place, context))
            elif item is not None:
                name = kind if isinstance(kind, str) else "something that names no kind"
                others[name] = others.get(name, 0) + 1
    if others:
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
        reading.notices.append(Notice(place, "other_kinds", f"ignored, being no CronJob: {told}"))
    return reading


def _items(value: Any) -> Iterator[Any]:
    """The objects in a document; a List holds many."""
    if (
        isinstance(value, Mapping)
        and str(value.get("kind", "")).endswith("List")
        and isinstance(value.get("items"), list)
    ):
        for item in value["items"]:
            # Items of a CronJobList may leave out what the list says of all.
            if isinstance(item, Mapping) and value["kind"] == "CronJobList":
                yield {"kind": "CronJob", "apiVersion": value.get("apiVersion"), **item}
            else:
                yield item
    else:
        yield value


def _entry(item: Mapping[str, Any], document: Document, place: str, context: Context) -> Entry:
    metadata, spec = _object(item, "metadata"), _object(item, "spec")
    name, namespace = str(metadata.get("name", "")), str(metadata.get("namespace") or "default")
    template = _object(_object(spec, "jobTemplate"), "spec")
    pod = _object(_object(template, "template"), "spec")
    facts = {"cronjob": f"{namespace}/{name}", "namespace": namespace, **_container(pod)}
    common: dict[str, Any] = {
        "source": "kubernetes",
        "place": f"{place}:{document.line}",
        "rule": str(spec.get("schedule", "")),
        "subject": f"{namespace}/{name}: {facts['command'] or facts['image']}",
        "facts": facts,
        "key": f"{namespace}/{name}" if name else "",
    }
    try:
        if not name:
            raise _Refused("required", "/metadata/name is required")
        if item.get("apiVersion") not in VERSIONS:
            raise _Refused("unsupported", f"/apiVersion must be one of {', '.join(VERSIONS)}")
        zone, text, findings = _zone(spec, context)
        recurrence, of_rule = _recurrence(text, zone, metadata, item, context)
        fields, of_fields = _fields(spec)
        job, of_job = _job(template, pod)
    except _Refused as refused:
        return Entry(**common, zone=context.zone, refusal=refused.finding)
    return Entry(
        **common,
        zone=zone,
        recurrence=recurrence,
        fields=fields,
        job=job,
        findings=(*findings, *of_rule, *of_fields, *of_job),
        paused="suspended in Kubernetes" if spec.get("suspend") is True else "",
    )


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _container(pod: Mapping[str, Any]) -> dict[str, str]:
    """Command and image of the first container. Its environment may hold secrets and is never read."""
    containers = pod.get("containers")
    first = containers[0] if isinstance(containers, list) and containers else None
    found = first if isinstance(first, Mapping) else {}
    lists = [found.get(name) for name in ("command", "args")]
    words = [str(word) for one in lists if isinstance(one, list) for word in one]
    return {"command": shlex.join(words), "image": str(found.get("image", ""))}


def _zone(spec: Mapping[str, Any], context: Context) -> tuple[Zone, str, list[Finding]]:
    """Where it runs, its rule without a zone, and what is to be said of that."""
    text = spec.get("schedule")
    if not isinstance(text, str) or not text.strip():
        raise _Refused("required", "/spec/schedule must be a text such as 0 5 * * *")
    text, named, source = text.strip(), spec.get("timeZone"), "spec.timeZone"
    findings = []
    if found := _PREFIX.fullmatch(text):
        if named:
            raise _Refused("conflict", "/spec/schedule names a zone, and so does /spec/timeZone")
        named, text, source = found[1], found[2], "its schedule"
        findings.append(
            Finding(
                "tz_prefix",
                "a zone within the schedule is not supported by Kubernetes, and newer versions refuse it",
                Kind.NOTE,
            )
        )
    if not named:
        return context.zone, text, findings
    try:
        return Zone(parse_zone(named), source), text, findings
    except InvalidField as fault:
        raise _Refused(fault.field_code, f"{source} {fault.reason}") from None


def _recurrence(
    text: str,
    zone: Zone,
    metadata: Mapping[str, Any],
    item: Mapping[str, Any],
    context: Context,
) -> tuple[dict[str, str], list[Finding]]:
    if text.startswith("@every"):
        anchor = _object(item, "status").get("lastScheduleTime") or metadata.get(
            "creationTimestamp"
        )
        return _every(text, anchor, context), [
            Finding(
                "anchor",
                "Kubernetes counts from the last run; here the beats are fixed, from an anchor",
            )
        ]
    if text.startswith("@") and text not in ALIASES:
        raise _Refused("bad_syntax", f"{text} is none of {', '.join(ALIASES)}, @every")
    if not text.startswith("@") and len(text.split()) != 5:
        raise _Refused("wrong_field_count", "/spec/schedule must have five fields")
    try:
        parse_cron(text)
    except InvalidField as fault:
        raise _Refused(fault.field_code, f"/spec/schedule {fault.reason}") from None
    findings = literal_dst(
        text, zone.key, context.now, "Kubernetes takes rules by the clock on the wall"
    )
    if re.search(r"[#L]|(?:^|[,-])7|-(?:0|SUN)\b", _weekdays(text)) or "L" in _days(text):
        findings.append(
            Finding(
                "refused_there",
                "Kubernetes refuses L, #, 7 for Sunday and ranges up to Sunday, so this never ran there",
                other_days=True,
            )
        )
    return {"cron": text, **LITERAL}, findings


def _days(text: str) -> str:
    fields = text.upper().split()
    return fields[2] if len(fields) == 5 else ""


def _weekdays(text: str) -> str:
    fields = text.upper().split()
    return fields[4] if len(fields) == 5 else ""


def _every(text: str, anchor: Any, context: Context) -> dict[str, str]:
    """Go's notation for a length of time, in whole seconds."""
    length = text.removeprefix("@every").strip()
    parts = _DURATION.findall(length)
    if not parts or "".join(number + unit for number, unit in parts) != length:
        raise _Refused("bad_syntax", f"{text}: a length is written like 1h30m")
    seconds, rest = divmod(round(sum(float(n) * _UNIT_MS[u] for n, u in parts)), 1000)
    if rest or seconds < 1:
        raise _Refused("sub_second", f"{text}: only whole seconds can be kept")
    unit = next(
        (name, size) for name, size in (("h", 3600), ("m", 60), ("s", 1)) if seconds % size == 0
    )
    return {"every": f"{seconds // unit[1]}{unit[0]}", "anchor": _anchor(anchor, context.now)}


def _anchor(value: Any, now: datetime) -> str:
    """The moment that a manifest names, else this one; YAML has made a time of it already, or left it a text."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, datetime):
        found = now
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return format_time(found.astimezone(UTC).replace(microsecond=0))


def _fields(spec: Mapping[str, Any]) -> tuple[dict[str, Any], list[Finding]]:
    """Overlapping runs and missed ones."""
    policy = spec.get("concurrencyPolicy") or "Allow"
    if not isinstance(policy, str) or policy not in ON_RUNNING:
        names = ", ".join(ON_RUNNING)
        raise _Refused("bad_policy", f"/spec/concurrencyPolicy must be one of {names}")
    running = ON_RUNNING[policy]
    findings = []
    if policy != "Allow":
        text = (
            f"concurrencyPolicy {policy} becomes on_running={running}; a run that waits for its next attempt is not running"
            " here, to Kubernetes it is"
        )
        findings.append(Finding("overlap", text))
    deadline = spec.get("startingDeadlineSeconds")
    if deadline is None:
        text = (
            "Kubernetes starts the last missed run when it is back, and none after more than 100 missed ones;"
            " misfire=latest starts it always"
        )
        findings.append(Finding("missed_runs", text))
        return {"on_running": running, "misfire": "latest"}, findings
    if not _is_number(deadline, 0, MOST_GRACE):
        raise _Refused(
            "out_of_range", f"/spec/startingDeadlineSeconds must be from 0 to {MOST_GRACE}"
        )
    grace = max(deadline, 1)
    text = (
        f"startingDeadlineSeconds becomes misfire=skip, grace_seconds={grace}: of several runs missed within that time"
        " Kubernetes starts the last, Duekeeper each"
    )
    findings.append(Finding("missed_runs", text))
    return {"on_running": running, "misfire": "skip", "grace_seconds": grace}, findings


def _is_number(value: Any, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _job(
    template: Mapping[str, Any], pod: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Finding]]:
    """Attempts and limits of one run."""
    backoff = template.get("backoffLimit", DEFAULT_BACKOFF)
    if not _is_number(backoff, 0, 999):
        raise _Refused("out_of_range", "/spec/jobTemplate/spec/backoffLimit must be from 0 to 999")
    job: dict[str, Any] = {"max_attempts": backoff + 1}
    findings = [
        Finding(
            "retries",
            f"backoffLimit {backoff} becomes max_attempts={backoff + 1}; the waits between are those of the handler",
        )
    ]
    limit = template.get("activeDeadlineSeconds")
    if _is_number(limit, 1, 2**63):
        kept = limit <= MOST_TIMEOUT
        if kept:
            job["timeout_seconds"] = limit
        told = (
            f"becomes timeout_seconds={limit}"
            if kept
            else "is longer than a timeout can be: left out"
        )
        findings.append(
            Finding(
                "timeout",
                f"activeDeadlineSeconds {told}; there it limits a run with all its retries, here each attempt",
            )
        )
    if template.get("parallelism", 1) != 1 or template.get("completions", 1) != 1:
        findings.append(
            Finding("parallelism", "one run was several pods there; it is one job here")
        )
    containers = pod.get("containers")
    if isinstance(containers, list) and len(containers) > 1:
        findings.append(
            Finding(
                "containers",
                f"its pod has {len(containers)} containers; command and image are those of the first",
                Kind.NOTE,
            )
        )
    return job, findings
