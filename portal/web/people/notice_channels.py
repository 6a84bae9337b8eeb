"""Render the pages of notice channels: the list with the form of a new one, and a channel with its log."""

from __future__ import annotations

import functools
import uuid
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import NoticeChannel, User
from portal.reads.people import notice_channels as reads
from portal.services.people.notice_channels import channels as verbs
from portal.web.page.access import current_user, posted_key, run_and_redirect, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.notices.notice_texts import notice_sentence
from portal.wording.notices.topics import TOPIC_LABELS
from portal.wording.pages import channel_pages
from scheduler.models import Team

MESSAGES_PER_PAGE = 30
TIME_INPUT = forms.TimeInput(attrs={"type": "time"}, format="%H:%M")


class ChannelForm(ServiceForm):
    """The fields that every channel has."""

    name = forms.CharField(max_length=200, label="Name", help_text="Such as phone, or vision in Slack.")
    topics = forms.MultipleChoiceField(
        choices=list(TOPIC_LABELS.items()), widget=forms.CheckboxSelectMultiple, label="It gets notices about"
    )
    digest = forms.ChoiceField(choices=list(channel_pages.DIGEST_LABELS.items()), label="When")
    quiet_from = forms.TimeField(required=False, widget=TIME_INPUT, label="Quiet from")
    quiet_until = forms.TimeField(
        required=False, widget=TIME_INPUT, label="until", help_text=channel_pages.QUIET_HELP
    )


class NewChannelForm(ChannelForm):
    team = forms.ModelChoiceField(
        Team.objects.none(),
        to_field_name="slug",
        required=False,
        label=channel_pages.OWNER_LABEL,
        empty_label=channel_pages.OWNER_SELF,
    )
    kind = forms.ChoiceField(choices=list(channel_pages.KIND_LABELS.items()), label="Kind")
    address = forms.CharField(
        max_length=1000, required=False, label="Address", help_text=channel_pages.ADDRESS_HELP
    )

    field_order = ["team", "name", "kind", "address", "topics", "digest", "quiet_from", "quiet_until"]

    def __init__(self, *args: Any, viewer: User, **kwargs: Any) -> None:
        """Offer the teams for which the viewer may create channels."""
        super().__init__(*args, **kwargs)
        field = self.fields["team"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = reads.teams_with_new_channels(viewer)
        if not field.queryset.exists():
            del self.fields["team"]


class ChangeChannelForm(ChannelForm):
    address = forms.CharField(
        max_length=1000, required=False, label="New address", help_text=channel_pages.NEW_ADDRESS_HELP
    )
    active = forms.BooleanField(required=False, label="Switched on")


@sign_in_required
def notice_channels(request: HttpRequest) -> HttpResponse:
    """List the viewer's channels and those of the viewer's teams, with a form for a new channel."""
    viewer, now = current_user(request), timezone.now()
    first = {"topics": list(TOPIC_LABELS), "name": "Mail", "kind": NoticeChannel.Kind.MAIL}
    form = NewChannelForm(request.POST or None, viewer=viewer, initial=first)
    secret = ""
    if request.method == "POST" and form.is_valid():
        made = form.carry_out(verbs.create_channel, actor=viewer, now=now, **form.cleaned_data)
        if made is not None:
            channel, secret = made
            messages.success(request, channel_pages.CREATED.format(name=channel.name))
            if not secret:
                return redirect("notice-channel", public_id=channel.public_id)
            form = NewChannelForm(viewer=viewer, initial=first)
    context = {
        "rows": [_row(channel) for channel in reads.notice_channels(viewer)],
        "form": form,
        "secret": secret,
        "no_mail_server": channel_pages.NO_MAIL_SERVER if _has_no_mail_server() else "",
        "now": now,
    }
    response = render(
        request, "organisation/notice_channels.html", context, status=400 if form.errors else 200
    )
    response["Cache-Control"] = "no-store"
    return response


@sign_in_required
def notice_channel(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Show a channel: its settings, a test, and the log of its messages."""
    viewer, now = current_user(request), timezone.now()
    channel = get_object_or_404(reads.notice_channels(viewer), public_id=public_id)
    verb = request.POST.get("verb", "")
    form = ChangeChannelForm(request.POST if verb == "change" else None, initial=_initial(channel))
    if verb == "change":
        changed = None
        if form.is_valid():
            given = {"actor": viewer, "channel": channel, "now": now, **form.cleaned_data}
            changed = form.carry_out(verbs.change_channel, **given)
        if changed is not None:
            messages.success(request, channel_pages.CHANGED.format(name=changed.name))
            return redirect("notice-channel", public_id)
    elif request.method == "POST":
        return _carried_out(request, verb, channel)
    page = Paginator(reads.message_log(channel), MESSAGES_PER_PAGE).get_page(request.GET.get("page"))
    log = [
        {
            "message": message,
            "state": channel_pages.STATE_LABELS[message.state],
            "texts": [notice_sentence(item.kind, item.numbers, channel.user) for item in message.items.all()],
        }
        for message in page
    ]
    context = {"row": _row(channel), "channel": channel, "form": form, "page": page, "log": log, "now": now}
    return render(request, "organisation/notice_channel.html", context, status=400 if form.errors else 200)


def _carried_out(request: HttpRequest, verb: str, channel: NoticeChannel) -> HttpResponseBase:
    """Carry out a verb that has no fields, and load the page again."""
    context: dict[str, Any] = {"actor": current_user(request), "now": timezone.now()}
    page = reverse("notice-channel", args=[channel.public_id])
    if verb == "test":
        run = functools.partial(verbs.test_channel, channel=channel, **context)
        done = channel_pages.TESTED.format(name=channel.name)
    elif verb == "again":
        visible = policy.visible_notice_messages(current_user(request)).filter(channel=channel)
        message = get_object_or_404(visible.select_related("channel"), public_id=_posted_id(request))
        run = functools.partial(verbs.send_again, message=message, **context)
        done = channel_pages.SENT_AGAIN
    elif verb == "remove":
        verbs.remove_channel(channel=channel, **context)
        messages.success(request, channel_pages.REMOVED.format(name=channel.name))
        return redirect("notice-channels")
    else:
        raise Http404
    return run_and_redirect(request, run, done=done, to=page)


def _posted_id(request: HttpRequest) -> uuid.UUID:
    try:
        return uuid.UUID(posted_key(request, "message"))
    except ValueError:
        raise Http404 from None


def _initial(channel: NoticeChannel) -> dict[str, Any]:
    names = ("name", "topics", "digest", "quiet_from", "quiet_until", "active")
    return {name: getattr(channel, name) for name in names}


def _row(channel: NoticeChannel) -> dict[str, Any]:
    return {
        "channel": channel,
        "kind": channel_pages.KIND_LABELS[channel.kind],
        "digest": channel_pages.DIGEST_LABELS[channel.digest],
        "topics": [TOPIC_LABELS[topic] for topic in channel.topics],
        "owner": channel.team.name if channel.team else channel_pages.OWNER_SELF,
    }


def _has_no_mail_server() -> bool:
    return not settings.GPUPOOL_HAS_MAIL_SERVER
