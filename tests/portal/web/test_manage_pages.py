"""Test the visibility and the actions of the pages of the fleet, hosts and approvals."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent.gpu.simulated_models import parse_mig, parse_models
from agent.protocol import JoinRequest
from portal import policy
from portal.models import Organisation, Submission, User
from portal.services.approvals import budget_requests, submissions
from portal.services.calendar import reservations
from scheduler import services as scheduling
from scheduler.models import BoundUnit, Gpu, Host, MaintenanceWindow, Quota, Reservation, Run, Unit
from scheduler.state.states import AdminState
from scheduler.sync import agent_api
from tests.portal.web.work_samples import reserve, run_job
from tests.seeds import first_cases
from tests.world import H100, World

pytestmark = pytest.mark.django_db


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?colour=owner",
        *(
            pytest.param(query, marks=pytest.mark.long)
            for query in (
                "?colour=temperature",
                "?colour=health",
                "?show=table",
                "?pool=shared",
                "?colour=nonsense",
            )
        ),
    ],
)
def test_the_fleet_shows_every_host_in_every_colouring(world: World, query: str) -> None:
    page = signed_in(world.operator).get(reverse("fleet") + query)
    assert page.status_code == 200
    for name in ("alpha", "beta", "gamma"):
        assert reverse("host", args=[name]) in page.content.decode()


def test_the_numbers_of_gpus_on_the_fleet_page_add_up(world: World) -> None:
    run_job(world, world.vision, "storm", host="alpha", gpus=[0, 1])
    reservation = reserve(world, world.vision, "review", hours=-1, length=3)
    for unit in Unit.objects.filter(gpu__host=world.hosts["alpha"], gpu__index__in=[2, 3]):
        BoundUnit.objects.create(
            reservation=reservation,
            unit=unit,
            slots=unit.slots,
            period=DateTimeTZRange(reservation.start, reservation.end),
        )
    Host.objects.filter(name="beta").update(admin_state="draining")
    run_job(world, world.vision, "leaving", host="beta", gpus=[0])
    Gpu.objects.filter(host__name="beta", index=1).update(repair_state="quarantined")
    page = signed_in(world.operator).get(reverse("fleet"))
    figures = page.context["figures"]
    assert (figures["held"], figures["reserved"]) == (3, 2)
    assert sum(figures[key] for key in ("held", "reserved", "free", "out")) == figures["gpus"]
    assert page.content.decode().count('class="gpu-reserved"') == 3  # the GPUs, and the legend
    alpha = next(
        row
        for group in page.context["groups"]
        for row in group["hosts"]
        if row["host"].name == "alpha" and row["reserved"]
    )
    assert "2 reserved" in alpha["words"]


def test_a_stranger_does_not_see_hosts_in_the_pool_of_another_team(world: World) -> None:
    assert "delta" in signed_in(world.vision.member).get(reverse("fleet")).content.decode()
    assert "delta" not in signed_in(world.language.member).get(reverse("fleet")).content.decode()
    assert signed_in(world.language.member).get(reverse("host", args=["delta"])).status_code == 404


def test_operators_are_warned_if_most_hosts_fall_silent_at_once(world: World) -> None:
    def warns(user: User, page: str) -> bool:
        return "hosts have not reported since" in signed_in(user).get(reverse(page)).content.decode()

    Host.objects.update(lease_state="alive", last_sync_at=timezone.now())
    assert not warns(world.operator, "fleet") and not warns(world.operator, "home")
    Host.objects.update(last_sync_at=timezone.now() - timedelta(minutes=5))
    hosts = Host.objects.count()
    assert f"{hosts} of {hosts} hosts" in signed_in(world.operator).get(reverse("fleet")).content.decode()
    assert warns(world.operator, "home") and not warns(world.vision.member, "fleet")


def test_a_fleet_without_telemetry_says_so(world: World) -> None:
    page = signed_in(world.operator).get(reverse("fleet")).content.decode()
    assert "no telemetry from 8 of 8 GPUs" in page


@pytest.mark.parametrize("role", first_cases(2, ["lead", "auditor", "member", "finance", "stranger"]))
def test_only_an_operator_changes_a_host(world: World, role: str) -> None:
    client = signed_in(world.people[role])
    for verb in ("cordon", "drain", "maintenance"):
        assert client.get(reverse(f"host-{verb}", args=["alpha"])).status_code == 403
        assert client.post(reverse(f"host-{verb}", args=["alpha"]), {"why": "mine"}).status_code == 403
    assert Host.objects.get(name="alpha").admin_state == AdminState.IN_SERVICE


def test_a_host_is_cordoned_drained_and_returned_after_a_page_shows_the_effect(world: World) -> None:
    client = signed_in(world.operator)
    assert "Effects" in client.get(reverse("host-drain", args=["alpha"])).content.decode()
    for verb, state in (("cordon", "cordoned"), ("drain", "draining"), ("return", "in_service")):
        assert client.post(reverse(f"host-{verb}", args=["alpha"]), {"why": "new fans"}).status_code == 302
        assert Host.objects.get(name="alpha").admin_state == state
    assert client.get(reverse("host", args=["alpha"])).status_code == 200


def test_after_a_drain_the_page_shows_which_work_remains(world: World) -> None:
    client = signed_in(world.operator)
    run_job(world, world.vision, "storm", host="alpha", gpus=[0, 1])
    run_job(world, world.vision, "desk", host="alpha", gpus=[2], kind="notebook")
    page = client.post(
        reverse("host-drain", args=["alpha"]), {"why": "new fans"}, follow=True
    ).content.decode()
    assert "alpha is draining: nothing new starts on it. Still leaving: storm, by " in page
    assert "desk runs to its end, by " in page
    assert "is done" not in page
    assert page.count("Still on it") == 1
    Run.objects.update(ended_at=timezone.now())
    later = client.get(reverse("host", args=["alpha"])).content.decode()
    assert "Nothing runs on it any more." in later
    assert (
        "Still on it"
        not in signed_in(world.vision.member).get(reverse("host", args=["alpha"])).content.decode()
    )


def test_maintenance_is_announced_and_a_window_that_ends_before_it_starts_is_refused(world: World) -> None:
    client = signed_in(world.operator)
    bad = {"start": "2126-05-02T10:00", "end": "2126-05-02T09:00", "why": "fans"}
    assert client.post(reverse("host-maintenance", args=["alpha"]), bad).status_code == 400
    assert (
        client.post(
            reverse("host-maintenance", args=["alpha"]), bad | {"end": "2126-05-02T12:00"}
        ).status_code
        == 302
    )
    assert MaintenanceWindow.objects.get().host.name == "alpha"


def test_a_reservation_without_gpus_shows_why_to_its_owner_and_to_operators(world: World) -> None:
    now = timezone.now()
    reservation = Reservation.objects.create(
        pool=world.shared,
        project=world.vision.project,
        owner=world.vision.member,
        name="course",
        units=8,
        start=now - timedelta(minutes=1),
        end=now + timedelta(hours=1),
        created_at=now,
        reason_at=now,
        reason_code="reserved_units_missing",
        reason_numbers={"need": 8, "free": 5, "total": 16},
    )
    page = signed_in(world.vision.member).get(reverse("reservation", args=[reservation.public_id]))
    assert "needs 8; 5 of 16" in page.content.decode()
    home = signed_in(world.operator).get(reverse("home"))
    assert "needs 8; 5 of 16" in home.content.decode()
    assert (
        "Reservations without GPUs"
        not in signed_in(world.language.member).get(reverse("home")).content.decode()
    )


def test_a_host_page_shows_an_agent_that_was_rejected_under_the_host_name(world: World) -> None:
    page = reverse("host", args=["alpha"])
    assert "<dt>Rejected</dt>" not in signed_in(world.operator).get(page).content.decode()
    scheduling.record_rejected_agent(
        world.hosts["alpha"].pk, reason="another agent is connected as alpha", boot_id="boot 7", now=world.now
    )
    shown = signed_in(world.operator).get(page).content.decode()
    assert "another agent is connected as alpha" in shown and "boot 7" in shown
    assert "quarantined" not in shown, "one rejection does not quarantine the host"
    for code in ("agent_copy", "agent_second"):
        scheduling.record_rejected_agent(
            world.hosts["alpha"].pk, reason="two of them", code=code, now=world.now
        )
        shown = signed_in(world.operator).get(page).content.decode()
        assert "That agent is quarantined" in shown and "make a new join token below" in shown


def test_an_operator_sees_the_boot_id_of_the_agent(world: World) -> None:
    """The boot ID reveals a full copy of the agent's folder that is started while the host is off."""
    page, boot = reverse("host", args=["alpha"]), "4f1c2a9e-0000-4000-8000-000000000001"
    Host.objects.filter(name="alpha").update(boot_id=boot)
    assert f"(boot {boot[:11]}…)" in signed_in(world.operator).get(page).content.decode()
    assert boot[:11] not in signed_in(world.vision.member).get(page).content.decode()


def test_a_new_host_gets_one_command_with_a_token(world: World) -> None:
    client = signed_in(world.operator)
    page = client.post(
        reverse("host-add"), {"pool": "shared", "name": "gpu-09", "labels": "rack=r7 site=north"}
    )
    assert page.status_code == 200
    assert "--join-token-file -" in page.content.decode()
    host = Host.objects.get(name="gpu-09")
    assert host.labels == {"rack": "r7", "site": "north"}
    assert host.state_changes.get().lease_state == "joining", "its time is accounted for from the start"
    token = page.content.decode().partition("printf %s ")[2].split()[0]
    assert (
        agent_api.join(JoinRequest(1, token, "gpu-09", "an instance", "a boot"), timezone.now()).host
        == "gpu-09"
    )
    second_response = client.post(reverse("host-add"), {"pool": "shared", "name": "gpu-09", "labels": "rack"})
    assert (
        second_response.status_code == 400 and "allowed: name=value pairs" in second_response.content.decode()
    )


def test_rejoining_a_simulated_host_shows_how_it_was_simulated(world: World) -> None:
    client = signed_in(world.operator)

    def join_page(name: str) -> str:
        return str(client.post(reverse("host", args=[name]), {"verb": "token"}).content.decode())

    for name, gpus in (
        ("alpha", "8xH100-80GB"),
        ("gamma", "8xA100-40GB --simulate-mig 6:7x1g.5gb,7:7x1g.5gb"),
    ):
        page = join_page(name)
        assert f"<code>--simulate {gpus}</code>" in page and "Without a GPU" not in page
        models, _, split = gpus.partition(" --simulate-mig ")
        parse_mig(split, parse_models(models))  # raises an error if the agent would reject the option
    Host.objects.filter(name="alpha").update(simulated=False)
    assert "Without a GPU, add <code>--simulate 8xH100-80GB</code>" in join_page("alpha")


# -- approvals -----------------------------------------------------------------------------------------------


def large_reservation(world: World, start: datetime | None = None) -> Submission:
    start = start or world.now + timedelta(days=400)
    reservation = reservations.request_reservation(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        name="sprint",
        units=8,
        models=[H100],
        start=start,
        end=start + timedelta(hours=4),
        now=start - timedelta(days=2),
        why="A deadline",
    )
    assert isinstance(reservation, Submission)
    return reservation


def test_a_lead_requests_a_quota_and_an_operator_approves_a_changed_one(world: World) -> None:
    lead, operator = signed_in(world.language.lead), signed_in(world.operator)
    fields = {
        "pool": "shared",
        "model": H100,
        "guaranteed_gpus": 6,
        "borrow_limit_gpus": "",
        "why": "New model",
    }
    assert lead.post(reverse("quota-change", args=["language"]), fields).status_code == 302
    row = Submission.objects.get()
    page = operator.get(reverse("approvals")).content.decode()
    assert "Guaranteed now" in page and "New model" in page
    decision = {"guaranteed_gpus": 5, "borrow_limit_gpus": "", "comment": "Five for now"}
    assert operator.post(reverse("submission-approve", args=[row.public_id]), decision).status_code == 302
    quota = Quota.objects.get(team=world.language.team, pool=world.shared, model=H100)
    assert quota.guaranteed_slots == 5 * 840
    row.refresh_from_db()
    assert row.approval.changed_payload["guaranteed_gpus"] == 5
    assert "Five for now" in lead.get(reverse("submission", args=[row.public_id])).content.decode()


def test_the_quota_form_shows_the_present_values_and_submits_only_what_changed(world: World) -> None:
    quota = Quota.objects.filter(team=world.vision.team, pool=world.shared, model=H100)
    quota.update(borrow_limit_slots=4 * 840)
    lead, url = signed_in(world.vision.lead), reverse("quota-change", args=["vision"])
    page = lead.get(url, {"pool": "shared", "model": H100})
    form = page.context["form"]
    posted = {name: form[name].value() for name in form.fields} | {
        f"initial-{name}": form[name].value() for name in form.fields if form.fields[name].show_hidden_initial
    }
    assert (posted["guaranteed_gpus"], posted["borrow_limit_gpus"]) == (8, 4)
    assert 'name="initial-borrow_limit_gpus" value="4"' in page.content.decode()
    values = {name: "" if value is None else value for name, value in posted.items()}
    assert lead.post(url, values).status_code == 400, "nothing has changed"
    quota.update(borrow_limit_slots=6 * 840)  # another person changes the limit while the page is open
    assert lead.post(url, values | {"guaranteed_gpus": 9}).status_code == 302
    row = Submission.objects.get()
    assert (row.payload["guaranteed_gpus"], row.payload["borrow_limit_gpus"]) == (9, 6)
    effect = signed_in(world.operator).get(reverse("approvals")).content.decode()
    assert "Guaranteed</td>" in effect and "May borrow</td>" not in effect
    assert "A quota of H100 80GB: guaranteed 8 → 9" in effect


def test_a_lead_is_warned_before_requesting_more_than_is_available(world: World) -> None:
    lead, operator = signed_in(world.language.lead), signed_in(world.operator)
    url = reverse("quota-change", args=["language"])
    assert "Can have at most" in lead.get(url).content.decode()
    fields = {
        "pool": "shared",
        "model": H100,
        "guaranteed_gpus": 14,
        "borrow_limit_gpus": "",
        "why": "New model",
    }
    page = lead.post(url, fields).content.decode()
    warning = (
        "14 × H100 80GB is 8 more than available: Shared has 16, and other teams are guaranteed 10 of them. "
        "Language can be guaranteed up to 6."
    )
    assert warning in page and "New model" in page
    assert not Submission.objects.exists()
    assert lead.post(url, fields | {"anyway": "1"}).status_code == 302
    page = operator.get(reverse("approvals")).content.decode()
    assert warning in page
    assert "8 too many" in page
    assert "guaranteed_gpus is" not in page
    assert "-8 free" not in page


def test_a_quota_above_the_pool_is_refused_at_its_field_and_the_request_stays_waiting(world: World) -> None:
    row = submissions.request_quota_change(
        actor=world.language.lead,
        team=world.language.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=14,
        now=world.now,
    )
    response = signed_in(world.operator).post(
        reverse("submission-approve", args=[row.public_id]),
        {"guaranteed_gpus": 14, "borrow_limit_gpus": "", "comment": ""},
    )
    assert response.status_code == 400
    row.refresh_from_db()
    assert row.state == "waiting"


def test_declining_needs_a_reason(world: World) -> None:
    row = submissions.request_quota_change(
        actor=world.language.lead,
        team=world.language.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=5,
        now=world.now,
    )
    operator = signed_in(world.operator)
    url = reverse("submission-decline", args=[row.public_id])
    values = {"guaranteed_gpus": 5, "borrow_limit_gpus": ""}
    assert operator.post(url, values | {"comment": ""}).status_code == 400
    assert operator.post(url, values | {"comment": "Not this month"}).status_code == 302
    row.refresh_from_db()
    assert row.state == "declined"


def test_a_user_sees_no_submission_of_another_team_and_a_lead_cannot_approve_one(world: World) -> None:
    row = submissions.request_quota_change(
        actor=world.language.lead,
        team=world.language.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=5,
        now=world.now,
    )
    stranger = signed_in(world.vision.member)
    assert stranger.get(reverse("submission", args=[row.public_id])).status_code == 404
    assert stranger.post(reverse("submission-approve", args=[row.public_id]), {}).status_code == 404
    lead = signed_in(world.language.lead)
    approve = {"guaranteed_gpus": 5, "borrow_limit_gpus": "", "comment": ""}
    assert lead.post(reverse("submission-approve", args=[row.public_id]), approve).status_code == 403
    assert lead.post(reverse("submission-withdraw", args=[row.public_id])).status_code == 302
    row.refresh_from_db()
    assert row.state == "withdrawn"


def test_several_submissions_are_approved_together_and_those_that_fail_stay_waiting(world: World) -> None:
    rows = [
        submissions.request_quota_change(
            actor=team.lead,
            team=team.team,
            pool=world.shared,
            model=H100,
            guaranteed_gpus=count,
            now=world.now,
        )
        for team, count in ((world.language, 5), (world.robotics, 16))
    ]
    page = signed_in(world.operator).post(
        reverse("submissions-decide"),
        {"verb": "approve", "submission": [str(row.public_id) for row in rows]},
        follow=True,
    )
    assert "1 approved" in page.content.decode() and "still waits" in page.content.decode()
    assert [Submission.objects.get(pk=row.pk).state for row in rows] == ["approved", "waiting"]


def test_deciding_without_a_ticked_submission_says_so(world: World) -> None:
    page = signed_in(world.operator).post(reverse("submissions-decide"), {"verb": "approve"}, follow=True)
    assert "Nothing is selected" in page.content.decode()


def test_approving_a_large_reservation_shows_its_effect_first(world: World) -> None:
    row = large_reservation(world)
    page = signed_in(world.operator).get(reverse("submission", args=[row.public_id])).content.decode()
    assert "Effect on others" in page and "A deadline" in page
    assert not Reservation.objects.exists()


def test_the_author_of_a_request_does_not_see_names_of_other_reservations(world: World) -> None:
    start = timezone.now().replace(microsecond=0) + timedelta(days=2)
    row = large_reservation(world, start)
    Reservation.objects.create(
        pool=world.shared,
        project=world.language.project,
        owner=world.language.member,
        name="unpublished model",
        start=start,
        end=start + timedelta(hours=2),
        units=1,
        created_at=world.now,
    )
    address = reverse("submission", args=[row.public_id])
    assert "unpublished model" in signed_in(world.operator).get(address).content.decode()
    for person in (world.vision.member, world.vision.lead):
        page = signed_in(person).get(address)
        assert page.status_code == 200 and "unpublished model" not in page.content.decode()


def test_an_unknown_filter_of_kinds_is_refused_and_not_answered_with_an_empty_list(
    world: World,
) -> None:
    submissions.request_quota_change(
        actor=world.vision.lead,
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=9,
        now=world.now,
    )
    operator = signed_in(world.operator)
    answer = operator.get(reverse("approvals"), {"kind": "nonsense"})
    page = answer.content.decode()
    assert answer.status_code == 400 and len(answer.context["rows"]) == 1
    assert (
        "kind is &#x27;nonsense&#x27;; allowed: reservation, series, window_change, quota_change, "
        "membership, budget" in page
    )
    assert "Nothing waits" not in page
    assert operator.get(reverse("approvals"), {"kind": "quota_change"}).status_code == 200


def quota_request(world: World) -> Submission:
    return submissions.request_quota_change(
        actor=world.vision.lead,
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=9,
        now=world.now,
    )


def test_a_lead_has_a_link_to_requests_and_selects_only_those_that_a_lead_decides(world: World) -> None:
    quota_request(world)
    lead = signed_in(world.vision.lead)
    assert f'href="{reverse("approvals")}"' in lead.get(reverse("tokens")).content.decode()
    member = signed_in(world.vision.member).get(reverse("tokens")).content.decode()
    assert f'href="{reverse("approvals")}"' not in member
    page = lead.get(reverse("approvals")).content.decode()
    assert "<h1>Requests</h1>" in page and "guaranteed 8 → 9" in page
    assert "Approve selected" not in page and 'type="checkbox"' not in page
    wish = submissions.request_membership(actor=world.stranger, team=world.vision.team, now=world.now)
    page = lead.get(reverse("approvals")).content.decode()
    assert "Approve selected" in page and page.count('type="checkbox"') == 1
    assert f'value="{wish.public_id}"' in page


def test_the_submissions_that_can_be_selected_are_those_that_the_policy_lets_a_user_decide(
    world: World,
) -> None:
    quota_request(world)
    submissions.request_membership(actor=world.stranger, team=world.vision.team, now=world.now)
    budget_requests.request_budget(
        actor=world.vision.lead, team=world.vision.team, month=date(2026, 3, 1), amount="10", now=world.now
    )
    own = quota_request_of_operator(world)
    rows = list(Submission.objects.select_related("author"))
    for separate in (True, False):
        Organisation.objects.update(separate_approver=separate)
        for role, user in world.people.items():
            found = policy.decidable_submissions(user, rows)
            assert found == {row.pk for row in rows if policy.may(user, "submission.decide", row)}, role
        assert (own.pk in policy.decidable_submissions(world.operator, rows)) is not separate


def quota_request_of_operator(world: World) -> Submission:
    return submissions.request_quota_change(
        actor=world.operator,
        team=world.language.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=5,
        now=world.now,
    )


def test_several_submissions_are_decided_only_by_a_known_action(world: World) -> None:
    row = large_reservation(world)
    fields = {"submission": str(row.public_id), "verb": "aprove", "comment": "a slip of the hand"}
    page = signed_in(world.operator).post(reverse("submissions-decide"), fields, follow=True).content.decode()
    assert "allowed: approve, decline" in page
    row.refresh_from_db()
    assert row.state == "waiting"
