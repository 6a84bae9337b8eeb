"""Define the form of the sign-in page."""

from __future__ import annotations

from typing import Any

from allauth.account.forms import LoginForm

from portal.wording.pages import people_pages


class SignInForm(LoginForm):  # type: ignore[misc]
    """A sign-in form with the portal's label for the user name, and without placeholders."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = people_pages.USER_NAME_LABEL
        for field in self.fields.values():
            field.widget.attrs.pop("placeholder", None)  # the placeholder repeats the label
