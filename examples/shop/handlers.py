"""What the shop's jobs do. A worker finds this module because the shop is an installed app."""

from examples.shop.payments import call, post
from workers.handlers import Cancelled, JobContext, PermanentFailure, Snooze, handler

QUICK = {"kind": "exponential", "base_seconds": 1, "factor": 2, "max_seconds": 60, "jitter": 0.5}


@handler("billing.charge", timeout_seconds=30, max_attempts=5, retry=QUICK)
def charge(ctx: JobContext) -> dict[str, object]:
    """Charges an invoice once, however many attempts that takes."""
    known = ("invoice", "amount_cents", "currency", "payment_method", "description")
    body = {name: ctx.payload[name] for name in known if name in ctx.payload}
    return {"charge_id": post(ctx, "/charges", body)["charge_id"]}


@handler("billing.receipt", timeout_seconds=30, max_attempts=5, retry=QUICK)
def receipt(ctx: JobContext) -> dict[str, object]:
    """Mails the receipt of an invoice."""
    return mail(ctx, "receipt")


@handler("accounts.password_reset", timeout_seconds=30, max_attempts=5, retry=QUICK)
def password_reset(ctx: JobContext) -> dict[str, object]:
    """Mails a reset link. The link is made by the mailer: a job's payload is no place for secrets."""
    return mail(ctx, "password_reset")


def mail(ctx: JobContext, template: str) -> dict[str, object]:
    """One mail to the payload's address; a job without one can never succeed."""
    if not ctx.payload.get("to"):
        raise PermanentFailure("the payload has no address in 'to'")
    return {"mail_id": post(ctx, "/mails", {"template": template, **ctx.payload})["mail_id"]}


@handler("reports.weekly_digest", timeout_seconds=60, max_attempts=3, retry=QUICK)
def weekly_digest(ctx: JobContext) -> dict[str, object]:
    """Goes through the sections of a report, about a second in all, and can be stopped between two."""
    sections = ("sales", "refunds", "stock", "visitors", "searches")
    for done, section in enumerate(sections, start=1):
        ctx.wait(0.2)
        ctx.raise_if_cancelled()
        ctx.progress(done / len(sections), section)
    return {"week": ctx.payload["week"], "sections": list(sections)}


@handler("campaigns.send", timeout_seconds=300, max_attempts=3, retry=QUICK)
def send_campaign(ctx: JobContext) -> dict[str, object]:
    """Mails a campaign batch by batch. Asked to stop, it says how far it got.

    Each batch has its own idempotency token, so a second attempt goes through all of them again
    and the batches that were out already collapse at the provider.
    """
    name, batches = ctx.payload["campaign"], int(ctx.payload["batches"])
    for sent in range(batches):
        if ctx.cancelled:
            raise Cancelled(f"{sent} of {batches} batches are out")
        if ctx.shutting_down:
            raise Snooze(1, f"the worker stops after {sent} of {batches} batches")
        body = {"template": "campaign", "campaign": name, "to": f"{ctx.payload['list']}/{sent}"}
        post(ctx, "/mails", body, effect=f"batch-{sent}")
        ctx.progress((sent + 1) / batches, f"batch {sent + 1} of {batches}")
        ctx.wait(float(ctx.payload["pause_seconds"]))
    return {"campaign": name, "batches": batches}


@handler("inventory.sync", timeout_seconds=30, max_attempts=3, retry=QUICK)
def sync_inventory(ctx: JobContext) -> dict[str, object]:
    """Reads the warehouse's stock. The warehouse is broken, so this one ends in the dead letters."""
    return {"warehouse": ctx.payload["warehouse"], "stock": call(ctx, "/stock")}


@handler("orders.export", timeout_seconds=30, max_attempts=3, retry=QUICK)
def export_orders(ctx: JobContext) -> dict[str, object]:
    """Exports the day's orders once the warehouse is open. Waiting for that costs no attempt."""
    if ctx.attempt == 1:
        raise Snooze(2, "the warehouse is still closed")
    ctx.progress(1.0, "written")
    return {"file": f"orders-{ctx.payload['day']}.csv", "rows": ctx.payload["rows"]}
