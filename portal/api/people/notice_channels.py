"""Implement the endpoints of notice channels and of their messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import ResponseSerializer
from portal.api.base.lookups import get_visible_or_404, visible_team
from portal.api.base.schema import page_schema
from portal.api.base.serializers import EmptyBody, PageQuery, StrictSerializer
from portal.api.base.views import ApiView
from portal.models import NoticeChannel, NoticeMessage, NoticeMessageState, TokenScope
from portal.reads.people import notice_channels as reads
from portal.services.people.notice_channels import channels
from portal.wording.notices.notice_texts import notice_sentence
from portal.wording.notices.topics import TOPIC_LABELS


class ChannelShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    team = serializers.CharField(source="team.slug", default=None, allow_null=True, help_text="null: yours")
    kind = serializers.ChoiceField(choices=NoticeChannel.Kind.choices)
    address = serializers.CharField(source="destination", help_text="without its secret parts")
    topics = serializers.ListField(child=serializers.ChoiceField(choices=list(TOPIC_LABELS.items())))
    digest = serializers.ChoiceField(choices=NoticeChannel.Digest.choices)
    quiet_from = serializers.TimeField(allow_null=True)
    quiet_until = serializers.TimeField(allow_null=True)
    active = serializers.BooleanField()
    failing_since = serializers.DateTimeField(allow_null=True, help_text="null: the last message arrived")
    failure = serializers.CharField()
    last_sent_at = serializers.DateTimeField(allow_null=True)


class ChannelMade(ChannelShape):
    secret = serializers.CharField(help_text="signs the messages of a webhook; shown only once. Else empty")


class ChannelFields(StrictSerializer):
    address = serializers.CharField(
        max_length=1000,
        required=False,
        allow_blank=True,
        help_text="mail address, https URL, or the URL of a chat service; your own mail needs none",
    )
    digest = serializers.ChoiceField(choices=NoticeChannel.Digest.choices, required=False)
    quiet_from = serializers.TimeField(required=False, allow_null=True)
    quiet_until = serializers.TimeField(required=False, allow_null=True)


class ChannelWish(ChannelFields):
    name = serializers.CharField(max_length=200)
    kind = serializers.ChoiceField(choices=NoticeChannel.Kind.choices)
    topics = serializers.ListField(child=serializers.CharField(max_length=20), max_length=10)
    team = serializers.CharField(max_length=60, required=False, allow_null=True, help_text="null: yours")


class ChannelChange(ChannelFields):
    name = serializers.CharField(max_length=200, required=False)
    topics = serializers.ListField(child=serializers.CharField(max_length=20), max_length=10, required=False)
    active = serializers.BooleanField(required=False)


class MessageShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    channel = serializers.UUIDField(source="channel.public_id")
    state = serializers.ChoiceField(choices=NoticeMessageState.choices)
    created_at = serializers.DateTimeField()
    due_at = serializers.DateTimeField()
    attempts = serializers.IntegerField()
    answer = serializers.CharField(help_text="result of the last attempt")
    sent_at = serializers.DateTimeField(allow_null=True)
    texts = serializers.SerializerMethodField(help_text="the sentences of its notices")

    def get_texts(self, message: NoticeMessage) -> list[str]:
        """Return the sentences of the notices in the message."""
        user = message.channel.user
        return [notice_sentence(item.kind, item.numbers, user) for item in message.items.all()]


def _channel(view: ApiView, id: UUID) -> NoticeChannel:
    return get_visible_or_404(reads.notice_channels(view.actor), public_id=id)


class ChannelListView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="notice_channels_list", parameters=[PageQuery], responses=page_schema(ChannelShape)
    )
    def get(self, request: Request) -> Response:
        """List your notice channels and those of the teams that you lead."""
        rows = reads.notice_channels(self.actor)
        return self.list_response(rows, ChannelShape, self.validated_query(PageQuery))

    @extend_schema(operation_id="notice_channels_create", request=ChannelWish, responses={201: ChannelMade})
    def post(self, request: Request) -> Response:
        """Create a notice channel for you, or for a team that you lead."""
        given = self.validated_body(ChannelWish)
        if given.get("team") is not None:
            given["team"] = visible_team(self.actor, given["team"])
        channel, secret = channels.create_channel(**self.service_context, **given)
        return Response({**ChannelShape(channel).data, "secret": secret}, status=201)


class ChannelView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="notice_channels_read", responses=ChannelShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Return one notice channel, without the secret parts of its address."""
        return self.object_response(_channel(self, id), ChannelShape)

    @extend_schema(operation_id="notice_channels_change", request=ChannelChange, responses=ChannelShape)
    def patch(self, request: Request, id: UUID) -> Response:
        """Change the given fields of a notice channel."""
        channel = _channel(self, id)
        given: dict[str, Any] = self.validated_body(ChannelChange)
        changed = channels.change_channel(**self.service_context, channel=channel, **given)
        return self.object_response(changed, ChannelShape)


class RemoveChannelView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="notice_channels_remove", request=EmptyBody, responses=ChannelShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Remove a notice channel, its waiting messages and its log. Return what was removed."""
        channel = _channel(self, id)
        self.validated_body(EmptyBody)
        removed = ChannelShape(channel).data
        channels.remove_channel(**self.service_context, channel=channel)
        return Response(removed)


class TestChannelView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="notice_channels_test", request=EmptyBody, responses={201: MessageShape})
    def post(self, request: Request, id: UUID) -> Response:
        """Send a test message through a notice channel."""
        channel = _channel(self, id)
        self.validated_body(EmptyBody)
        sent = channels.test_channel(**self.service_context, channel=channel)
        return self.object_response(sent, MessageShape, 201)


class ChannelMessageListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="notice_channels_messages",
        parameters=[PageQuery],
        responses=page_schema(MessageShape),
    )
    def get(self, request: Request, id: UUID) -> Response:
        """List the messages of a notice channel, newest first."""
        rows = reads.message_log(_channel(self, id)).select_related("channel__user")
        return self.list_response(rows, MessageShape, self.validated_query(PageQuery))


class SendAgainView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="notice_messages_send_again", request=EmptyBody, responses=MessageShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Send a message again that was sent or has failed. It keeps its id."""
        rows = policy.visible_notice_messages(self.actor).select_related("channel__user", "channel__team")
        message = get_visible_or_404(rows, public_id=id)
        self.validated_body(EmptyBody)
        return self.object_response(
            channels.send_again(**self.service_context, message=message), MessageShape
        )
