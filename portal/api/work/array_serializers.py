"""Define the serializers of job arrays."""

from __future__ import annotations

from rest_framework import serializers

from portal.api.base.fields import ResponseSerializer
from portal.services.work import impossible_starts
from scheduler.models import JobArray


class ArrayShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    project = serializers.SerializerMethodField()
    owner = serializers.CharField(source="owner.username")
    indices = serializers.CharField()
    most_at_once = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()
    tasks = serializers.IntegerField(source="tasks_all")
    waiting = serializers.IntegerField()
    running = serializers.IntegerField(help_text="placed, starting, running or stopping")
    finished = serializers.IntegerField()
    cancelled = serializers.IntegerField()
    failed = serializers.IntegerField(help_text="ended, but neither finished nor cancelled")

    def get_project(self, array: JobArray) -> str:
        """Return the path of the project: ``team/project``."""
        return f"{array.project.team.slug}/{array.project.slug}"


class SubmittedArray(ArrayShape):
    warning = serializers.SerializerMethodField(
        help_text="the warning of a submitted job; it applies to each task"
    )

    def get_warning(self, array: JobArray) -> str:
        """Return the warning that the tasks may never start or that their hosts cannot communicate.

        The text is empty if there is no warning. All tasks have the same warning, so only the first is
        checked.
        """
        first = array.tasks.select_related("pool", "project__team", "owner", "reservation").order_by("pk")[0]
        return impossible_starts.submission_warning(first, self.context["user"], self.context["now"])


class CancelledTasks(ResponseSerializer):
    cancelled = serializers.IntegerField(help_text="tasks that had not ended")
