"""Writes orders.ndjson, a shop day pressed into three quarters of a minute.

    python examples/make_orders.py [path]

Each line is one body for POST /api/v1/jobs plus `tenant`, and for some `cancel_after_ms` with
`then`: whoever posts the line strips these. The same program writes the same bytes every time.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

SEED = 20261127
SALES, RESETS, DIGESTS, EXPORTS, REPEATS = 128, 42, 28, 6, 6
DECLINED = {41, 97}  # two sales whose card is turned down, for good: no receipt
TENANTS = {"acme-shop": ("USD", 6), "nordwind": ("EUR", 3), "kiosk-24": ("ILS", 1)}
PEOPLE = {
    "acme-shop": ("June Carter", "Sam O'Neil", "Zoë Kravitz", "名取 さな"),
    "nordwind": ("Jörg Weiß", "Anneke Smørgård", "Łucja Żak", "Γιώργος Ψαρράς"),
    "kiosk-24": ("دانة الحربي", "נועה לוי", "Omar 🚲 Haddad", "שירה כהן"),
}
GOODS = {
    "acme-shop": ("desk lamp 💡", "garden hose 50 ft", "gift card 🎁", "tea kettle"),
    "nordwind": ("Regenjacke, grün", "Wanderstock (Paar)", "Zelt für 3 ⛺", "Öllampe"),
    "kiosk-24": ("قهوة عربية ٥٠٠ غ", "חלב 3% וקפה", "SIM card 📱", "مياه معدنية"),  # noqa: RUF001 - its own digits
}
TAGS = ("storefront", "mobile", "black-friday", "🎄 early", "هدية", "חדש", "Rückfrage")
PAYMENT_METHODS = ("pm_visa", "pm_mastercard", "pm_sepa", "pm_wallet")
type Line = dict[str, object]


class ShopDay:
    """Draws the lines of one day; every draw comes from one seeded source, in one order."""

    def __init__(self, seed: int = SEED) -> None:
        self._draw = random.Random(seed)

    def lines(self) -> list[Line]:
        """All lines in posting order: what takes long first, the rest shuffled."""
        plain = [
            *(line for n in range(SALES) for line in self._sale(n)),
            *(self._password_reset(n) for n in range(RESETS)),
            *(self._digest(n) for n in range(DIGESTS)),
            *(self._export(n) for n in range(EXPORTS)),
        ]
        self._draw.shuffle(plain)
        # A client that lost the answer sends its line again: same key, same body, same job.
        for line in self._draw.sample([line for line in plain if "request_key" in line], REPEATS):
            plain.insert(plain.index(line) + self._draw.randrange(1, 40), line)
        return [*self._campaigns(), self._stock(), *plain]

    def _tenant(self) -> str:
        return self._draw.choices(list(TENANTS), [weight for _, weight in TENANTS.values()])[0]

    def _line(self, tenant: str, handler: str, key: str, payload: Line, **fields: object) -> Line:
        line = {"tenant": tenant, "handler": handler, "request_key": key, "payload": payload}
        if self._draw.random() < 0.25:
            line["tags"] = self._draw.sample(TAGS, self._draw.choice((1, 2)))
        return line | {name: value for name, value in fields.items() if value is not None}

    def _later(self, share: float, low: int, high: int) -> int | None:
        return self._draw.randint(low, high) if self._draw.random() < share else None

    def _address(self, tenant: str) -> str:
        return f"{self._draw.choice(PEOPLE[tenant])} <c{self._draw.randrange(1000)}@example.com>"

    def _sale(self, number: int) -> Iterator[Line]:
        """A charge and, unless the card is turned down, its receipt some seconds later."""
        tenant, invoice = self._tenant(), 8800 + number
        customer, delay = f"cus_{self._draw.randrange(100, 999)}", self._later(0.5, 1, 26)
        payload: Line = {
            "invoice": invoice,
            "amount_cents": self._draw.randrange(199, 24900),
            "currency": TENANTS[tenant][0],
            "payment_method": self._draw.choice(PAYMENT_METHODS),
            "description": self._draw.choice(GOODS[tenant]),
        }
        if number in DECLINED:
            payload["payment_method"] = "pm_declined"
        yield self._line(
            tenant,
            "billing.charge",
            f"invoice-{invoice}-charge",
            payload,
            lane=self._draw.choice(("urgent", "high")),
            reference=customer,
            delay_seconds=delay,
        )
        if number in DECLINED:
            return
        to = self._address(tenant)
        # A customer's name is a reference as good as any, in whatever script it is written.
        yield self._line(
            tenant,
            "billing.receipt",
            f"invoice-{invoice}-receipt",
            {"to": to, "invoice": invoice, "subject": f"Receipt {invoice} ✅"},
            lane=self._draw.choice(("normal", "normal", "low")),
            reference=to.partition(" <")[0] if number % 9 == 0 else customer,
            delay_seconds=(delay or 0) + self._draw.randint(1, 4),
        )

    def _password_reset(self, number: int) -> Line:
        tenant = self._tenant()
        payload: Line = {"to": self._address(tenant), "locale": "ar" if number % 8 == 0 else "en"}
        return self._line(
            tenant,
            "accounts.password_reset",
            f"reset-{number:03d}-{self._draw.randrange(16**6):06x}",
            payload,
            lane="urgent",
            delay_seconds=self._later(0.6, 1, 30),
        )

    def _digest(self, number: int) -> Line:
        tenant = self._tenant()
        return self._line(
            tenant,
            "reports.weekly_digest",
            f"digest-2026-w48-{number:02d}",
            {"week": "2026-W48", "team": self._draw.choice(PEOPLE[tenant])},
            lane=self._draw.choice(("background", "background", "low")),
            delay_seconds=self._draw.randint(5, 28),
        )

    def _export(self, number: int) -> Line:
        rows = self._draw.randrange(80, 900)
        return self._line(
            self._tenant(),
            "orders.export",
            f"export-2026-11-27-{number}",
            {"day": "2026-11-27", "rows": rows},
            lane="low",
            delay_seconds=self._later(0.5, 4, 20),
        )

    def _campaigns(self) -> Iterator[Line]:
        slow = {"campaign": "Black Friday 🖤", "list": "all@example.com", "batches": 240}
        yield self._line(
            "acme-shop",
            "campaigns.send",
            "campaign-black-friday",
            slow | {"pause_seconds": 0.25},
            lane="normal",
            reference="cmp_2211",
            cancel_after_ms=9000,  # running by then, and with most of its minute to go
            then="cancel",
        )
        yield self._line(
            "nordwind",
            "campaigns.send",
            "campaign-winter",
            {"campaign": "Winterschlussverkauf ❄️", "list": "de@example.com", "batches": 40}
            | {"pause_seconds": 0.25},
            lane="background",
            delay_seconds=40,
            cancel_after_ms=12000,  # long before it is due: it never runs
            then="cancel",
        )
        yield self._line(
            "kiosk-24",
            "campaigns.send",
            "campaign-evening",
            {"campaign": "عروض المساء 🌙", "list": "regulars@example.com", "batches": 8}
            | {"pause_seconds": 0.25},
            lane="low",
            delay_seconds=6,
        )

    def _stock(self) -> Line:
        return self._line(
            "nordwind",
            "inventory.sync",
            "stock-warehouse-2",
            {"warehouse": "Lager 2"},
            lane="normal",
            max_attempts=3,
            retry={"kind": "fixed", "base_seconds": 0.8, "max_seconds": 1, "jitter": 0.2},
        )


def orders() -> str:
    """The whole file as text."""
    lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in ShopDay().lines())
    return "".join(lines)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("orders.ndjson")
    target.write_text(orders(), encoding="utf-8", newline="\n")
