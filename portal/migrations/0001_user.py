"""Create the accounts of version 0.0. The tables of the scheduler refer to them."""

from django.contrib.auth.models import UserManager
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.db import migrations, models
from django.utils import timezone

from scheduler.migrations._tables import ID, flag, optional_text, optional_time, table


class Migration(migrations.Migration):
    initial = True
    replaces = [("portal", "0001_initial")]
    dependencies = [("auth", "0012_alter_user_first_name_max_length")]

    operations = [
        table(
            "User",
            id=ID,
            password=models.CharField(verbose_name="password", max_length=128),
            last_login=optional_time(verbose_name="last login"),
            is_superuser=models.BooleanField(
                verbose_name="superuser status",
                default=False,
                help_text="Designates that this user has all permissions without explicitly assigning them.",
            ),
            username=models.CharField(
                verbose_name="username",
                max_length=150,
                unique=True,
                help_text="Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.",
                validators=[UnicodeUsernameValidator()],
                error_messages={"unique": "A user with that username already exists."},
            ),
            first_name=models.CharField(verbose_name="first name", max_length=150, blank=True),
            last_name=models.CharField(verbose_name="last name", max_length=150, blank=True),
            email=models.EmailField(verbose_name="email address", max_length=254, blank=True),
            is_staff=models.BooleanField(
                verbose_name="staff status",
                default=False,
                help_text="Designates whether the user can log into this admin site.",
            ),
            is_active=models.BooleanField(
                verbose_name="active",
                default=True,
                help_text="Designates whether this user should be treated as active. Unselect this instead of deleting accounts.",
            ),
            date_joined=models.DateTimeField(verbose_name="date joined", default=timezone.now),
            operator=flag("manages hosts and pools, decides approvals"),
            finance=flag("sees all charges, closes months"),
            auditor=flag("sees everything, changes nothing"),
            time_zone=optional_text(
                60, help_text="time zone of its dates; empty: the browser's, or else the organisation's"
            ),
            theme=models.CharField(
                max_length=6,
                default="system",
                choices=[("system", "as the system"), ("light", "light"), ("dark", "dark")],
            ),
            groups=models.ManyToManyField(
                "auth.group",
                verbose_name="groups",
                blank=True,
                help_text="The groups this user belongs to. A user will get all permissions granted to each of their groups.",
                related_name="user_set",
                related_query_name="user",
            ),
            user_permissions=models.ManyToManyField(
                "auth.permission",
                verbose_name="user permissions",
                blank=True,
                help_text="Specific permissions for this user.",
                related_name="user_set",
                related_query_name="user",
            ),
            managers=[("objects", UserManager())],
            options={"verbose_name": "user", "verbose_name_plural": "users", "abstract": False},
        ),
    ]
