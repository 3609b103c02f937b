"""Read-only admin pages that survive rows written past validation.

Lists read only what they show, a row whose neighbour is missing stays in the list (select_related would join it away),
nothing is counted beyond a cap, no column sorts without an index, and a search term is matched exactly or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db import models
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Cast, Left
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from jobs.models import Lane, Pool, Route, Tenant
from jobs.policies.masking import mask_texts, mask_values
from jobs.queries.history import stored_json
from jobs.queries.lists import PlainTime

COUNT_CAP = 10_000
TEXT_CAP = 70_000  # characters of one JSON value that a page reads
# How a neighbour is named.
LABELS: dict[Any, str] = {Tenant: "slug", Lane: "name", Pool: "name", Route: "handler"}


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts at most COUNT_CAP rows; what lies behind them is reached by searching."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:COUNT_CAP].count())


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Shows rows that may have been written past validation, and lets nobody change them.

    The driver gives up a whole row on one value that Python cannot hold, so JSON is read as text and times within
    bounds. A field `x` that refers to a configuration table is shown as `x_label`, JSON as `x_json`, a time as `x_time`.
    """

    actions = None
    list_per_page = 100
    paginator = CappedPaginator
    show_full_result_count = False
    sortable_by = ()
    hidden: tuple[str, ...] = ()

    def __init__(self, model: type[models.Model], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        fields = [field for field in model._meta.concrete_fields if field.name not in self.hidden]
        self.json_names = [f.name for f in fields if isinstance(f, models.JSONField)]
        self.time_names = [field.name for field in fields if _is_time(field)]
        self.neighbours = {field.name: field for field in fields if field.related_model in LABELS}
        self.shown_as: dict[str, str] = {}  # field → the name under which it is shown
        for field in fields:
            name = field.name
            if name in self.json_names:
                self.shown_as[name] = self._column(f"{name}_json", field, _json_of(name))
            elif name in self.time_names:
                self.shown_as[name] = self._column(f"{name}_time", field, _time_of(name))
            elif name in self.neighbours:
                self.shown_as[name] = self._column(f"{name}_label", field, _label_of(field))
            elif field.is_relation:
                self.shown_as[name] = self._column(f"{name}_key", field, _key_of(field))
            elif not isinstance(field, models.BinaryField):
                self.shown_as[name] = name
        self.shown = tuple(self.shown_as.values())

    def _column(self, name: str, field: Any, value: Callable[[Any], object]) -> str:
        value.short_description = field.verbose_name  # type: ignore[attr-defined]
        setattr(self, name, value)
        return name

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        return False  # any column could be filtered by an address, and few have an index

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.shown

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.shown

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        rows = rows.defer(*self.json_names, *self.time_names).annotate(
            **{f"{name}_plain": PlainTime(F(name)) for name in self.time_names}
        )
        for name, field in self.neighbours.items():
            neighbour: Any = field.related_model
            named = neighbour.objects.filter(pk=OuterRef(field.attname))
            rows = rows.annotate(**{f"{name}_is": Subquery(named.values(LABELS[neighbour])[:1])})
        return rows

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        texts = {
            f"{name}_as_text": Left(Cast(name, models.TextField()), TEXT_CAP)
            for name in self.json_names
        }
        try:
            key = self.model._meta.pk.to_python(object_id)
        except ValidationError:
            return None
        row = self.get_queryset(request).filter(pk=key).annotate(**texts).first()
        if row is None:
            return None
        for time in self.time_names:  # for __str__, which would read it as it is stored
            setattr(row, time, getattr(row, f"{time}_plain"))
        return row


def _is_time(field: Any) -> bool:
    kept = field.output_field if isinstance(field, models.GeneratedField) else field
    return isinstance(kept, models.DateTimeField)


def _time_of(name: str) -> Callable[[Any], object]:
    def shown(row: Any) -> str:
        moment = getattr(row, f"{name}_plain")
        return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"

    return shown


def _json_of(name: str) -> Callable[[Any], object]:
    def shown(row: Any) -> SafeString:
        value = stored_json(getattr(row, f"{name}_as_text", None))
        return format_html("<pre>{}</pre>", written(value, indent=2))

    return shown


def written(value: object, indent: int | None = None) -> str:
    return json.dumps(mask_texts(mask_values(value)), indent=indent, ensure_ascii=False)


def _label_of(field: Any) -> Callable[[Any], object]:
    def shown(row: Any) -> str:
        label = getattr(row, f"{field.name}_is")
        return f"#{getattr(row, field.attname)} (missing)" if label is None else str(label)

    return shown


def _key_of(field: Any) -> Callable[[Any], object]:
    def shown(row: Any) -> object:
        return getattr(row, field.attname)

    return shown
