"""Print a one-time link with which an operator signs in when no identity provider works."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from portal.models import User
from portal.services.people.identity.break_glass import is_operator, new_break_glass_link, operator_names
from portal.wording.pages.identity_pages import BREAK_GLASS_REFUSED


class Command(BaseCommand):
    help = "Print a one-time link with which an operator signs in, also if passwords are turned off."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the user name."""
        parser.add_argument("name", help="the user name of an operator")
        parser.add_argument(
            "--remove-second-factor",
            action="store_true",
            help="also remove the second factor, which the operator lost, and end all sessions",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the link. The audit log has its creation and its use."""
        name = options["name"]
        user = User.objects.filter(username=name).first()
        if user is None or not is_operator(user):
            allowed = ", ".join(operator_names()) or "nothing, because there is no operator"
            raise CommandError(BREAK_GLASS_REFUSED.format(name=ascii(name), allowed=allowed))
        removed = options["remove_second_factor"]
        self.stdout.write(new_break_glass_link(user, timezone.now(), remove_second_factor=removed))
