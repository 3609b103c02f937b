"""Signing in and out."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import views
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError


class StaffSignInForm(AuthenticationForm):
    """Tells a person who is no member of staff so, instead of letting them in to a refusal on every page."""

    error_messages = {
        **AuthenticationForm.error_messages,
        "no_staff": "This account is not a staff account, so it cannot use the console.",
    }

    def confirm_login_allowed(self, user: Any) -> None:
        """Checked after the password, so that a stranger learns nothing about accounts."""
        super().confirm_login_allowed(user)
        if not user.is_staff:
            raise ValidationError(self.error_messages["no_staff"], code="no_staff")


class SignInView(views.LoginView):
    """The door of the console."""

    template_name = "console/login.html"
    authentication_form = StaffSignInForm


class SignOutView(views.LogoutView):
    """By POST only: a link or an image on another site must not sign anybody out."""
