"""Admin pages on which staff with Django's permission change configuration. Rows of jobs stay read-only.

Who changed what is in the admin's own log. Only the fields that were changed are written: a worker may advertise a
handler, or somebody else edit another field, while the page is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from django import forms
from django.contrib import admin
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.http import HttpRequest

from jobs.admin.read_only import LABELS, ReadOnlyAdmin


class Bounds(NamedTuple):
    """Smallest and largest number that a field takes; not a number and infinities are refused by the field itself."""

    least: float
    most: float


# A rate below one start in twelve days is a pause; one above what any database can publish is no limit.
RATE = Bounds(1e-6, 1e6)
BURST = Bounds(1, 1_000_000)


class EditableAdmin(ReadOnlyAdmin):
    """A read-only page with some fields that can be changed.

    Attributes:
        editable: Fields that can be changed.
        fixed: Fields that are given when a row is added, and never again.
        may_add, may_delete: Whether rows can be; needs Django's permission as well.
        bounds: Field → numbers that it takes.
    """

    editable: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[tuple[str, ...]] = ()
    may_add: ClassVar[bool] = True
    may_delete: ClassVar[bool] = False
    bounds: ClassVar[Mapping[str, Bounds]] = {}

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may_add and admin.ModelAdmin.has_add_permission(self, request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(self.editable) and admin.ModelAdmin.has_change_permission(self, request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may_delete and admin.ModelAdmin.has_delete_permission(self, request, obj)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return (*self.fixed, *self.editable)
        if not self.has_change_permission(request, obj):
            return self.shown
        return tuple(
            name if name in self.editable else shown for name, shown in self.shown_as.items()
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        if not self.has_change_permission(request, obj):
            return self.shown
        return tuple(shown for name, shown in self.shown_as.items() if name not in self.editable)

    def formfield_for_dbfield(
        self, db_field: models.Field[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> forms.Field | None:
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None and (bounds := self.bounds.get(db_field.name)):
            field.validators += [MinValueValidator(bounds.least), MaxValueValidator(bounds.most)]
        return field

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        neighbour = db_field.related_model
        if name := LABELS.get(
            neighbour
        ):  # its name alone: other columns may hold what Python cannot
            kwargs["queryset"] = neighbour.objects.only(name).order_by(name)
        field = super().formfield_for_foreignkey(db_field, request, **kwargs)
        if field is not None:
            for link in ("can_add_related", "can_change_related", "can_delete_related"):
                setattr(field.widget, link, False)
        return field

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            obj.save(force_insert=True)
        elif names := [name for name in form.changed_data if name in self.editable]:
            obj.save(update_fields=names)


def actor_of(request: HttpRequest) -> str:
    """Who is signed in, as history names them."""
    return f"user:{request.user.get_username()}"
