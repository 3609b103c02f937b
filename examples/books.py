"""Whether the books balance after a run: jobs accepted against jobs finished and charges made.

Pure: lists in, verdict out. It fetches nothing and knows no database.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

FINISHED = ("succeeded", "dead", "cancelled")
# A succeeded job of these handlers has exactly one effect of this kind at the provider.
EFFECT_OF = {
    "billing.charge": "charges",
    "billing.receipt": "mails",
    "accounts.password_reset": "mails",
}
type Tokens = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Books:
    """The figures of a run, and one sentence per discrepancy."""

    accepted: int
    succeeded: int
    dead: int
    cancelled: int
    unfinished: int
    lost: int
    deliveries: int
    charges: int
    charge_jobs_succeeded: int
    mails: int
    duplicate_deliveries_collapsed: int
    charged_but_not_succeeded: int  # no fault: the answer was lost once too often; for people
    problems: list[str] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        return not self.problems


def balance(
    *,
    accepted: Collection[str],
    jobs: Iterable[Mapping[str, object]],
    provider_report: Mapping[str, object],
) -> Books:
    """Compares what callers were promised, what the scheduler says and what the provider did.

    Args:
        accepted: Idempotency tokens of all jobs the API answered 201 or 200 for; repeats (a
            replayed request) count once.
        jobs: Job rows or API jobs with `status`, `handler`, `idempotency_token` and `attempt`.
        provider_report: The provider's /report?tokens=1.

    Raises:
        ValueError: The report holds no tokens, so nothing could be compared.
    """
    tokens = provider_report.get("per_token")
    if not isinstance(tokens, Mapping):
        raise ValueError("the provider's report must be asked for with ?tokens=1")
    rows = list(jobs)
    by_token = {str(row["idempotency_token"]): row for row in rows}
    promised = {str(token) for token in accepted}
    statuses = Counter(str(by_token[token]["status"]) for token in promised & by_token.keys())
    charged = {token for token, seen in tokens.items() if count(seen, "charges")}
    lost = len(promised - by_token.keys())
    return Books(
        accepted=len(promised),
        succeeded=statuses["succeeded"],
        dead=statuses["dead"],
        cancelled=statuses["cancelled"],
        unfinished=sum(n for status, n in statuses.items() if status not in FINISHED),
        lost=lost,
        deliveries=count(provider_report, "deliveries"),
        charges=count(provider_report, "charges"),
        charge_jobs_succeeded=sum(
            row["handler"] == "billing.charge" and row["status"] == "succeeded" for row in rows
        ),
        mails=count(provider_report, "mails"),
        duplicate_deliveries_collapsed=count(provider_report, "duplicate_deliveries_collapsed"),
        charged_but_not_succeeded=sum(
            by_token[token]["status"] != "succeeded" for token in charged & by_token.keys()
        ),
        problems=[
            *job_problems(promised, rows, by_token),
            *effect_problems(by_token, tokens),
            *provider_problems(by_token, tokens, provider_report),
        ],
    )


def job_problems(
    promised: set[str],
    rows: list[Mapping[str, object]],
    by_token: Mapping[str, Mapping[str, object]],
) -> list[str]:
    """No lost work: each promised job exists, once, and is finished."""
    twice = Counter(str(row["idempotency_token"]) for row in rows)
    missing = sorted(promised - by_token.keys())
    unfinished = [t for t in promised & by_token.keys() if by_token[t]["status"] not in FINISHED]
    return [
        *(f"lost: {token} was accepted and no job has it" for token in missing),
        *(f"unfinished: {t} is {by_token[t]['status']}" for t in sorted(unfinished)),
        *(f"doubled: {n} jobs have the token {t}" for t, n in sorted(twice.items()) if n > 1),
    ]


def effect_problems(by_token: Mapping[str, Mapping[str, object]], tokens: Tokens) -> list[str]:
    """No duplicate work: a succeeded charge, receipt or reset has its one effect."""
    problems = []
    for token, job in sorted(by_token.items()):
        kind = EFFECT_OF.get(str(job["handler"]))
        effects = count(tokens.get(token, {}), kind) if kind else 0
        if kind and job["status"] == "succeeded" and effects != 1:
            problems.append(f"unequal: {token} succeeded with {effects} {kind} instead of 1")
    return problems


def provider_problems(
    by_token: Mapping[str, Mapping[str, object]], tokens: Tokens, report: Mapping[str, object]
) -> list[str]:
    """Nothing at the provider that no attempt of a job asked for, and its own sums are right."""
    problems = []
    for token, seen in sorted(tokens.items()):
        # A campaign's batches have tokens of their own: the job's token, "#", the batch.
        job = by_token.get(token) or by_token.get(token.rpartition("#")[0])
        deliveries = count(seen, "deliveries")
        if job is None:
            problems.append(f"unasked: {token} has {deliveries} deliveries and no job")
        elif deliveries > count(job, "attempt"):
            attempts = count(job, "attempt")
            problems.append(f"unasked: {token}, {deliveries} deliveries in {attempts} attempts")
    distinct = sum(count(seen, "charges") > 0 for seen in tokens.values())
    if count(report, "charges") != distinct:
        problems.append(f"sums: {count(report, 'charges')} charges for {distinct} tokens")
    outcomes = ("charges", "mails", "duplicate_deliveries_collapsed", "refused")
    explained = sum(count(report, name) for name in outcomes)
    if count(report, "deliveries") != explained:
        problems.append(f"sums: {count(report, 'deliveries')} deliveries, {explained} explained")
    return problems


def count(figures: Mapping[str, object], name: str) -> int:
    """A figure of a report; one that is absent counts as 0, and then the sums do not add up."""
    return int(str(figures.get(name, 0)))
