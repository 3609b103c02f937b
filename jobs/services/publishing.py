"""Filling the room of one pool: choose by the policies, read what the choice needs, claim."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from jobs.conf import conf
from jobs.policies.demand import Place, groups_of_others, others_in
from jobs.policies.fairness import Group, Pick, Picks, pick
from jobs.queries.candidates import DueRow, GroupKey
from jobs.queries.catalog import Catalog
from jobs.services.memory import Memory
from jobs.services.terms import Terms
from jobs.transitions.claim import claim_batch

FETCH_ROUNDS = 4  # of rows of groups whose turn has come, for one pool in one turn
FEW_GROUPS = 200
RESERVED_AHEAD_SECONDS = 1000 * 86_400.0  # what fills a reserve is taken before all that does not
LATE_SECONDS = 1.0  # a claim this late tells what held the job back
LIFTED_BY_AN_END = ("tenant_max_running",)  # limits that the end of a job lifts


@dataclass(slots=True)
class Publishing:
    """What was published.

    Attributes:
        published: Jobs claimed and published.
        lost: Candidates that went to another scheduler, or were cancelled meanwhile.
        blocked: Work may wait for room, or for a limit that the end of a job lifts. Look again soon.
        more: Not all that had room was published. Look again at once.
    """

    published: int = 0
    lost: int = 0
    blocked: bool = False
    more: bool = False


class Publisher:
    """Fills pools within one turn, on one reading of everything."""

    def __init__(
        self,
        found: Catalog,
        terms: Terms,
        memory: Memory,
        others: Sequence[object],
        by_others: Mapping[Place, int],
        *,
        shards: Sequence[int],
        actor: str,
        at: float,
        now: datetime | None,
        done: Publishing,
        until: float,
    ) -> None:
        """`by_others` is what they published since the last turn, `at` database time; what happens goes into `done`.

        After `until` (monotonic seconds) no further batch is begun.
        """
        self._until = until
        self._by_others = by_others
        self._found, self._terms, self._memory, self._others = found, terms, memory, others
        self._shards, self._actor, self._at, self._now = shards, actor, at, now
        self._done = done
        self._head_starts = {lane.pk: lane.head_start_seconds for lane in found.lanes}

    def fill(
        self,
        pool_id: int,
        groups: dict[GroupKey, Group],
        *,
        room: int,
        homes: Mapping[int, str] | None = None,
    ) -> int:
        """Publish from these groups to this pool, in claims of at most one batch each.

        Args:
            pool_id: The pool; the caller checked labels and handlers.
            groups: Due work.
            room: Most jobs.
            homes: Route → name of the pool that it belongs to, when this one lends its slots.

        Returns:
            How many slots are spoken for: by jobs of ours, lost ones among them, and by what other schedulers have due.
        """
        if not groups:
            return 0
        if room <= 0:
            self._full(pool_id)
            return 0
        others, weights = groups_of_others(self._others, pool_id)
        held = self._held(pool_id, groups, others, room)
        turns = self._memory.turns.setdefault(pool_id, {})
        for lane, turn in turns.items():
            weight = weights.get(others_in(lane), 1.0)
            turn.correct(others_in(lane), weight, real=self._by_others.get((pool_id, lane), 0))
        keys, given = {id(group): key for key, group in groups.items()}, 0
        fetches_left = FETCH_ROUNDS
        while True:
            picks = pick(
                [*groups.values(), *others],
                room=min(room, conf().claim_batch),
                turns=turns,
                weights={**self._terms.weights, **weights},
                held=held,
                reserves=self._found.reserves.get(pool_id),
                walls=self._terms.walls,
            )
            held.update((one.group.lane, one.group.tenant) for one in picks.chosen)
            guesses = Counter(one.group.lane for one in picks.chosen if one.group.stand_in)
            for lane, count in guesses.items():
                turns[lane].correct(others_in(lane), weights[others_in(lane)], guessed=count)
            refused = self._claim(pool_id, picks, homes or {})
            room -= len(picks.chosen) - refused
            given += len(picks.chosen) - refused
            self._note(pool_id, picks, still_room=room > 0)
            reads_on = picks.wanting is not None or refused
            if room <= 0 or not (reads_on or picks.full):
                return given
            if time.monotonic() > self._until or (reads_on and not fetches_left):
                self._done.more = True
                return given
            if reads_on:
                fetches_left -= 1
                self._drop_full_keys(groups)
                if picks.wanting is not None:
                    self._fetch(groups, keys, room)

    def _drop_full_keys(self, groups: Mapping[GroupKey, Group]) -> None:
        """What waits for a slot of its concurrency key is parked by now: it is not tried again."""
        full = self._memory.full_keys
        tenants = {tenant for tenant, _ in full}
        for key, group in groups.items():
            if key.tenant in tenants:
                group.items = deque(
                    item
                    for item in group.items
                    if (key.tenant, item[1].concurrency_key) not in full
                )

    def _held(
        self,
        pool_id: int,
        groups: Mapping[GroupKey, Group],
        others: Sequence[Group],
        room: int,
    ) -> Counter[tuple[int, Hashable]]:
        """(lane, tenant) → slots, where somebody may have to stand back; else nobody asks."""
        known = sum(len(group.items) for group in groups.values())
        contended = known > room or any(group.more for group in groups.values())
        held: Counter[tuple[int, Hashable]] = Counter()
        if not (others or contended or pool_id in self._found.reserves):
            return held
        for one in self._terms.held:
            if one.pool_id == pool_id:
                tenant = one.tenant_id if one.mine else others_in(one.lane_id)
                held[one.lane_id, tenant] += one.leases
        return held

    def _fetch(
        self, groups: Mapping[GroupKey, Group], keys: Mapping[int, GroupKey], room: int
    ) -> None:
        """Read on in every group whose known rows are used up, as far as this room can need if all go on alike.

        Among few groups those that are nearly used up are read on as well: each of them would ask for a read of its own.
        """
        live = [group for group in groups.values() if group.more or group.items]
        each = math.ceil(1.5 * room / len(live)) + 1
        spare = each // 4 if len(live) <= FEW_GROUPS else 0
        low = [group for group in live if group.more and len(group.items) <= spare]
        self._memory.backlog.fetch(
            {keys[id(group)]: each for group in low},
            head_starts=self._head_starts,
            now=self._now,
        )

    def _claim(self, pool_id: int, picks: Picks, homes: Mapping[int, str]) -> int:
        """Claim what was chosen; how many of it a limit has refused."""
        chosen = [one for one in picks.chosen if not one.group.stand_in]
        if not chosen:
            return 0
        found: list[DueRow] = [one.item for one in chosen]
        claimed = claim_batch(
            shards=self._shards,
            job_ids=[row.job_id for row in found],
            pool=self._found.pools[pool_id],
            actor=self._actor,
            items=self._items(pool_id, chosen, homes),
            limits=self._terms.limits(found),
            now=self._now,
        )
        self._memory.windows[pool_id].publish(claimed.published)
        # Which ones were lost or refused is not known by lane: their part of each.
        real = claimed.published / len(found)
        for lane, count in Counter(row.key.lane for row in found).items():
            self._memory.published[pool_id, lane] += round(count * real)
        self._memory.full_keys |= claimed.full_keys
        self._done.published += claimed.published
        self._done.lost += claimed.lost
        return claimed.refused

    def _items(
        self, pool_id: int, chosen: Sequence[Pick], homes: Mapping[int, str]
    ) -> dict[UUID, dict[str, Any]]:
        """What the claim must know of single jobs; most need nothing."""
        items: dict[UUID, dict[str, Any]] = {}
        known: dict[tuple[object, ...], dict[str, float]] = {}  # jobs of a group come due together
        since = self._memory.delays.since
        for _, row, reserved, ahead in chosen:
            told: dict[str, Any] = {}
            if home := homes.get(row.key.route):
                told["home"] = home
            if self._at - row.due > LATE_SECONDS:
                begin = max(since, round(row.due, 1))
                alike = row.key, row.concurrency_key, begin
                if alike not in known:
                    known[alike] = self._waits(pool_id, row, begin)
                if known[alike]:
                    told["waited"] = known[alike]
            if reserved:
                told["reserve"] = True
                ahead += RESERVED_AHEAD_SECONDS
            if told:
                items[row.job_id] = {"told": told}
            if ahead:
                items.setdefault(row.job_id, {})["ahead"] = ahead
        return items

    def _waits(self, pool_id: int, row: DueRow, begin: float) -> dict[str, float]:
        """Code of what held the job back → seconds of its waiting, from `begin` on, in which that was seen."""
        key = row.key
        route = self._found.routes[key.route]
        reasons: list[Hashable] = [
            ("pool_saturated", pool_id),
            ("reserved_for_others", pool_id, key.lane),
            ("tenant_max_running", key.tenant),
            ("tenant_rate", key.tenant),
            ("handler_rate", route.handler),
            ("tenant_paused", key.tenant),
            ("lane_paused", key.lane),
            ("handler_paused", route.handler),
            ("pool_paused", pool_id),
            ("no_live_worker", key.route),
            ("concurrency_key", key.tenant, row.concurrency_key),
        ]
        seen = self._memory.delays.between(reasons, begin, self._at)
        return {reason[0]: round(seconds, 1) for reason, seconds in seen.items()}  # type: ignore[index]

    def _note(self, pool_id: int, picks: Picks, *, still_room: bool) -> None:
        saw, at = self._memory.delays.saw, self._at
        if picks.full and not still_room:  # else one batch is full, not the pool
            self._full(pool_id)
        for wall in picks.walled:
            saw(wall, at)
            self._done.blocked |= isinstance(wall, tuple) and wall[0] in LIFTED_BY_AN_END
        for lane in picks.kept:
            saw(("reserved_for_others", pool_id, lane), at)
            self._done.blocked = True
        for key in self._memory.full_keys:
            saw(("concurrency_key", *key), at)

    def _full(self, pool_id: int) -> None:
        self._done.blocked = True
        self._memory.delays.saw(("pool_saturated", pool_id), self._at)
