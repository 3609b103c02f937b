"""What every operation of the API has: a token, a scope for each method, known query parameters, JSON in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.http import HttpRequest
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from jobs.api.authentication import TokenAuthentication, require_scope, token_of
from jobs.api.errors import answer_exception
from jobs.api.parameters import Parameter, read_query
from jobs.api.parsers import ApiRequest, StrictJSONParser
from jobs.services.credentials import SCOPES

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class OnlyJson(BaseContentNegotiation):
    """There is one form of answers, so Accept decides nothing."""

    def select_parser(self, request: Request, parsers: Any) -> BaseParser | None:
        """The parser, for its media type in UTF-8."""
        media_type, _, parameters = request.content_type.partition(";")
        charset = parameters.replace('"', "").replace(" ", "").lower()
        fits = media_type.strip().lower() == StrictJSONParser.media_type
        return parsers[0] if fits and charset in ("", "charset=utf-8") else None

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """The renderer."""
        return renderers[0], renderers[0].media_type


class ApiView(APIView):
    """Base of all views. A subclass with a method that has no scope does not come up.

    Attributes:
        scopes: Method → the scope it needs, for every method that the class has.
        parameters: Method → its query parameters; all others are refused.
    """

    scopes: ClassVar[Mapping[str, str]] = {}
    parameters: ClassVar[Mapping[str, Mapping[str, Parameter]]] = {}

    authentication_classes = (TokenAuthentication,)
    permission_classes = ()  # `initial` asks for the scope of the method: there is no way around it
    parser_classes = (StrictJSONParser,)
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = OnlyJson
    http_method_names = [*(method.lower() for method in METHODS), "head"]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        methods = {method for method in METHODS if hasattr(cls, method.lower())}
        if methods != set(cls.scopes):
            raise TypeError(f"{cls.__qualname__}.scopes must name exactly {sorted(methods)}")
        if unknown := set(cls.scopes.values()) - SCOPES:
            raise TypeError(f"{cls.__qualname__}.scopes has unknown scopes {sorted(unknown)}")

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """The request with the body reader of the API."""
        return ApiRequest(
            request,
            parsers=self.get_parsers(),
            authenticators=self.get_authenticators(),
            negotiator=self.get_content_negotiator(),
            parser_context=self.get_parser_context(request),
        )

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Token, then method, then scope, then parameters.

        Raises:
            Problem: The first that fails.
        """
        super().initial(request, *args, **kwargs)
        method = "GET" if request.method == "HEAD" else str(request.method)
        if method not in self.scopes:
            self.http_method_not_allowed(request)
        require_scope(token_of(request), self.scopes[method])
        self.query = read_query(request, self.parameters.get(method, {}))

    def get_exception_handler(self) -> Any:
        """The one of the API."""
        return answer_exception
