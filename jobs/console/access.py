"""Who may use the console, and under which name they stand in history."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers

ACTOR_LENGTH = 150  # of the actor columns


def staff_required[**P](
    view: Callable[Concatenate[HttpRequest, P], HttpResponseBase],
) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """Only signed-in staff get to `view`; nothing it answers is kept by a cache or a browser's disk."""

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        response: HttpResponseBase
        if not request.user.is_authenticated:
            # After signing in, a form that was being sent cannot be sent again by a redirect.
            then = request.get_full_path() if request.method == "GET" else reverse("console:home")
            response = redirect_to_login(then)
        elif not (request.user.is_active and request.user.is_staff):
            response = render(request, "console/refused.html", status=403)
        else:
            response = view(request, *args, **kwargs)
        add_never_cache_headers(response)
        return response

    return guarded


def actor_of(user: Any) -> str:
    """The signed-in person as history names them; two long names that begin alike stay apart."""
    actor = f"user:{user.get_username()}"
    if len(actor) <= ACTOR_LENGTH:
        return actor
    mark = f"…#{user.pk}"
    return actor[: ACTOR_LENGTH - len(mark)] + mark
