"""Field pieces that several models share: links without database constraints, array lookups, buckets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.db import models
from django.db.models import F, Func, Lookup, Q

from jobs.database import array_literal

# A deferrable foreign key costs a trigger call per row at commit, about 9 % of a drain. So hot tables refer to each
# other without one; orphans are a matter for the history checker.
_UNCONSTRAINED: dict[str, Any] = {"on_delete": models.DO_NOTHING, "db_constraint": False}


# Infinity is a time to PostgreSQL and none to Python: one such row would keep all others from being read.
_CALENDAR = datetime(1970, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)


def is_a_date(what: str, name: str) -> models.CheckConstraint:
    """A column of a model holds a time that Python can hold, or none."""
    known = Q(**{f"{name}__isnull": True}) | Q(**{f"{name}__range": _CALENDAR})
    return models.CheckConstraint(condition=known, name=f"{what}_{name}_is_a_date")


class Link(models.ForeignKey):  # type: ignore[type-arg]
    """A reference between hot tables: no database constraint and no index of its own."""

    def __init__(self, to: Any, **kwargs: Any) -> None:
        super().__init__(
            to, **{"related_name": "+", **kwargs, **_UNCONSTRAINED, "db_index": False}
        )


class OneLink(models.OneToOneField):  # type: ignore[type-arg]
    """As Link, at most one row per target."""

    def __init__(self, to: Any, **kwargs: Any) -> None:
        super().__init__(to, **{"related_name": "+", **kwargs, **_UNCONSTRAINED})


@models.ForeignObject.register_lookup
@models.Field.register_lookup
class AnyOf(Lookup):
    """`field__any=[…]`: one array parameter instead of a list of placeholders.

    The text of a statement stays the same for every batch size, so its plan can be tested.
    """

    lookup_name = "any"

    def get_prep_lookup(self) -> Any:
        field = self.lhs.output_field
        target = field.target_field if isinstance(field, models.ForeignKey) else field
        literal = array_literal(list(self.rhs))
        if isinstance(literal, str):
            return literal
        return [target.get_prep_value(value) for value in literal]

    def get_db_prep_lookup(self, value: Any, connection: Any) -> Any:
        return "%s", [value]

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        lhs, lhs_params = self.process_lhs(compiler, connection)
        rhs, rhs_params = self.process_rhs(compiler, connection)
        field = self.lhs.output_field
        target = field.target_field if isinstance(field, models.ForeignKey) else field
        cast = str(target.db_type(connection)).split(" ")[0]
        return f"{lhs} = ANY({rhs}::{cast}[])", [*lhs_params, *rhs_params]


class Minute(Func):
    """The minute a time falls in. date_bin, unlike date_trunc, is immutable and so can be stored."""

    template = "date_bin('1 minute', %(expressions)s, timestamptz '2000-01-01 00:00:00+00')"
    output_field = models.DateTimeField()


def bucket_field() -> models.GeneratedField:
    """`due_at` cut to its minute, kept by the database so that it cannot disagree."""
    return models.GeneratedField(
        expression=Minute(F("due_at")), output_field=models.DateTimeField(), db_persist=True
    )
