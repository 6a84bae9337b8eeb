"""Read bookings of GPUs in a window: allocations, reservations, pending submissions, maintenance.

A booking of another team shows the team's name without details: see ``CalendarBooking.named``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Count, Max, Min, Q, Sum

from portal import policy
from portal.hardware_request import profile_slots
from portal.models import Submission, SubmissionState, User
from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE
from scheduler.models import Allocation, BoundUnit, Gpu, MaintenanceWindow, Pool, Reservation, Team
from scheduler.reads.capacity import SLOT_COUNT
from scheduler.state.states import ReservationState

MAX_BOOKINGS = 3000


@dataclass
class CalendarBooking:
    """A booking of GPUs over a period.

    ``state`` is past, running, reserved or pending. ``host`` is None for a reservation or submission that has
    no particular GPUs yet. ``named`` is False if the viewer may see the team but no details: ``name`` and
    ``public_id`` are then empty.
    """

    kind: str
    state: str
    team: Team
    model: str
    host: str | None
    gpus: float
    start: datetime
    end: datetime
    named: bool
    name: str = ""
    public_id: str = ""
    open_end: bool = False
    profile: str = WHOLE_GPU_PROFILE
    units: int = 0  # number of GPUs or slices; ``gpus`` converts slices to fractions of a GPU


@dataclass
class CalendarHostRow:
    name: str
    gpus: int
    bookings: list[CalendarBooking] = field(default_factory=list)
    maintenance: list[tuple[datetime, datetime, str]] = field(default_factory=list)


@dataclass
class CalendarModelGroup:
    """The hosts and bookings of one GPU model in one pool. ``promises`` are the bookings without a host."""

    pool: Pool
    model: str
    gpus: int
    hosts: list[CalendarHostRow]
    promises: list[CalendarBooking] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"{self.pool.slug}|{self.model}"

    @property
    def bookings(self) -> list[CalendarBooking]:
        return [*self.promises, *(booking for host in self.hosts for booking in host.bookings)]


def calendar_window(
    user: User, pools: Iterable[Pool], start: datetime, end: datetime, now: datetime, team: str = ""
) -> tuple[list[CalendarModelGroup], bool]:
    """Return (groups, cut off): the bookings in ``[start, end)`` by pool and model.

    ``cut off`` is True if old bookings were omitted, because there are more than MAX_BOOKINGS. ``team`` is
    the slug of the only team to show; "" shows all teams. The number of queries is fixed.
    """
    reader = _CalendarReader(user, list(pools), start, end, now, team)
    reader.read()
    return reader.groups(), reader.cut_off


class _CalendarReader:
    def __init__(
        self, user: User, pools: list[Pool], start: datetime, end: datetime, now: datetime, team: str
    ) -> None:
        self.user, self.pools, self.start, self.end, self.now, self.team = user, pools, start, end, now, team
        self.by_key: dict[tuple[int, str], CalendarModelGroup] = {}
        self.rows: dict[tuple[str, str], CalendarHostRow] = {}
        self.teams = {team.pk: team for team in Team.with_removed.all()}
        self.cut_off = False
        self.seen = (
            set(policy.visible_teams(user).values_list("pk", flat=True))
            if not policy.sees_all_teams(user)
            else None
        )
        if self.seen is not None and policy.sees_all_charges(user):
            # Finance sees every team's name, but no team's workloads.
            self.seen = set()

    def read(self) -> None:
        self._hosts()
        self._held()
        self._bound()
        self._promised()
        self._pending()
        self._maintenance()

    def groups(self) -> list[CalendarModelGroup]:
        found = sorted(
            self.by_key.values(), key=lambda g: (g.pool.team_id is not None, g.pool.name, -g.gpus, g.model)
        )
        for group in found:
            group.promises.sort(key=lambda b: (b.start, b.end, b.name))
            for host in group.hosts:
                host.bookings.sort(key=lambda b: (-b.gpus, b.start))
        return found

    def _hosts(self) -> None:
        pools = {pool.pk: pool for pool in self.pools}
        rows = Gpu.objects.filter(host__pool__in=pools, retired_at=None).order_by("host__name")
        for pool, host, model in rows.values_list("host__pool_id", "host__name", "model"):
            group = self.by_key.setdefault((pool, model), CalendarModelGroup(pools[pool], model, 0, []))
            group.gpus += 1
            if (host, model) not in self.rows:
                self.rows[host, model] = CalendarHostRow(host, 0)
                group.hosts.append(self.rows[host, model])
            self.rows[host, model].gpus += 1

    def _held(self) -> None:
        """Add allocations that belong to no reservation, as one booking per run, host and model.

        Only the newest MAX_BOOKINGS bookings are added.
        """
        inside = DateTimeTZRange(self.start, self.end)
        rows = Allocation.objects.filter(
            period__overlap=inside, unit__gpu__host__pool__in=self.pools, reservation=None
        )
        columns = (
            "run_id",
            "unit__gpu__host__name",
            "unit__gpu__model",
            "project__team_id",
            "workload__kind",
            "workload__name",
            "workload__public_id",
            "workload__max_runtime_seconds",
            "workload__profile",
        )
        grouped = (
            self._of_team(rows, "project__team__slug")
            .values_list(*columns)
            .annotate(
                units=Count("pk"),
                held=Sum(SLOT_COUNT),
                since=Min("period__startswith"),
                until=Max("period__endswith"),
                going_on=Count("pk", filter=Q(period__upper_inf=True)),
            )
            .order_by("-since", "run_id")
        )
        found = list(grouped[: MAX_BOOKINGS + 1])
        self.cut_off = len(found) > MAX_BOOKINGS
        self._put(self._booking(*row[1:]) for row in found[:MAX_BOOKINGS])

    def _booking(
        self,
        host: str,
        model: str,
        team: int,
        kind: str,
        name: str,
        public_id: Any,
        limit: int,
        profile: str,
        units: int,
        slots: int,
        since: datetime,
        until: datetime | None,
        going_on: int,
    ) -> CalendarBooking:
        end = (
            until
            if not going_on and until
            else max(since + timedelta(seconds=limit), self.now + timedelta(minutes=1))
        )
        names = (
            {"named": True, "name": name, "public_id": str(public_id)}
            if self._knows(team)
            else {"named": False}
        )
        return CalendarBooking(
            kind=kind,
            state="running" if going_on else "past",
            team=self.teams[team],
            model=model,
            host=host,
            gpus=slots / SLOTS_PER_GPU,
            start=since,
            end=end,
            open_end=bool(going_on),
            profile=profile,
            units=units,
            **names,
        )

    def _bound(self) -> None:
        """Add the units that reservations hold or held, as one booking per reservation, host and model."""
        inside = DateTimeTZRange(self.start, self.end)
        rows = BoundUnit.objects.filter(period__overlap=inside, unit__gpu__host__pool__in=self.pools)
        rows = self._of_team(rows, "reservation__project__team__slug")
        sums: dict[tuple[int, str, str], CalendarBooking] = {}
        for bound in rows.select_related("reservation__project__team", "unit__gpu__host").order_by("pk"):
            gpu, reservation = bound.unit.gpu, bound.reservation
            key = (reservation.pk, gpu.host.name, gpu.model)
            size = (bound.slots.upper - bound.slots.lower) / SLOTS_PER_GPU
            if key in sums:
                sums[key].gpus += size
                sums[key].units += 1
                continue
            active = reservation.state == ReservationState.ACTIVE
            sums[key] = CalendarBooking(
                kind="reservation",
                state="running" if active else "past",
                team=reservation.project.team,
                model=gpu.model,
                host=gpu.host.name,
                gpus=size,
                start=bound.period.lower,
                end=bound.period.upper or reservation.end,
                profile=reservation.profile,
                units=1,
                **self._names(reservation.project.team_id, reservation),
            )
        self._put(sums.values())

    def _promised(self) -> None:
        """Add confirmed reservations, which have no units before their start."""
        rows = Reservation.objects.filter(
            pool__in=self.pools, state=ReservationState.CONFIRMED, start__lt=self.end, end__gt=self.start
        ).select_related("project__team", "pool")
        found = list(self._of_team(rows, "project__team__slug").order_by("start", "pk"))
        slots = profile_slots({(r.pool_id, r.profile) for r in found if r.profile != WHOLE_GPU_PROFILE})
        for reservation in found:
            group = self._group_for(reservation.pool_id, reservation.models_wanted)
            if group is None:
                continue
            units = reservation.units * reservation.hosts
            group.promises.append(
                CalendarBooking(
                    kind="reservation",
                    state="reserved",
                    team=reservation.project.team,
                    model=group.model,
                    host=None,
                    gpus=units
                    * slots.get((reservation.pool_id, reservation.profile), SLOTS_PER_GPU)
                    / SLOTS_PER_GPU,
                    start=reservation.start,
                    end=reservation.end,
                    profile=reservation.profile,
                    units=units,
                    **self._names(reservation.project.team_id, reservation),
                )
            )

    def _pending(self) -> None:
        """Add the visible submissions that wait for approval. Submissions hold no units."""
        rows = policy.visible_submissions(self.user).filter(
            kind__in=(Submission.Kind.RESERVATION, Submission.Kind.SERIES, Submission.Kind.WINDOW_CHANGE),
            state=SubmissionState.WAITING,
            pool__in=self.pools,
        )
        for submission in (
            self._of_team(rows, "team__slug").select_related("team").order_by("created_at", "pk")
        ):
            payload = submission.payload
            start, end = datetime.fromisoformat(payload["start"]), datetime.fromisoformat(payload["end"])
            group = self._group_for(submission.pool_id, payload.get("models") or [])
            if group is None or start >= self.end or end <= self.start:
                continue
            group.promises.append(
                CalendarBooking(
                    kind="submission",
                    state="pending",
                    team=submission.team,
                    model=group.model,
                    host=None,
                    gpus=float(payload.get("gpus") or payload.get("units") or 1),
                    profile=str(payload.get("profile") or WHOLE_GPU_PROFILE),
                    units=int(payload.get("units") or 1) * int(payload.get("hosts") or 1),
                    start=start,
                    end=end,
                    named=True,
                    name=str(payload.get("name", "")),
                    public_id=str(submission.public_id),
                )
            )

    def _maintenance(self) -> None:
        windows = MaintenanceWindow.objects.filter(
            host__pool__in=self.pools, start__lt=self.end, end__gt=self.start
        )
        for host, start, end, reason in windows.values_list("host__name", "start", "end", "reason"):
            for (name, _), row in self.rows.items():
                if name == host:
                    row.maintenance.append((start, end, reason))

    def _put(self, bookings: Iterable[CalendarBooking]) -> None:
        for booking in bookings:
            row = self.rows.get((booking.host or "", booking.model))
            if row is not None:
                row.bookings.append(booking)

    def _group_for(self, pool: int | None, models: list[str]) -> CalendarModelGroup | None:
        """Return the group in which the calendar shows a booking that has no host yet.

        The result is the group of the first model in ``models`` that the pool has, or None if the pool has
        none of these models. If ``models`` is empty, the result is the pool's group with the most GPUs.
        """
        of_pool = [group for (key, _), group in self.by_key.items() if key == pool]
        named = [group for model in models for group in of_pool if group.model == model]
        return named[0] if named else max(of_pool, key=lambda g: g.gpus, default=None) if not models else None

    def _knows(self, team: int) -> bool:
        return self.seen is None or team in self.seen

    def _names(self, team: int, thing: Any) -> dict[str, Any]:
        if not self._knows(team):
            return {"named": False}
        return {"named": True, "name": thing.name, "public_id": str(thing.public_id)}

    def _of_team(self, rows: Any, column: str) -> Any:
        return rows.filter(**{column: self.team}) if self.team else rows


def calendar_feed(user: User, now: datetime) -> list[Reservation]:
    """Return the reservations for a person's calendar feed, at most 1000, the earliest start first.

    They are the reservations of the person's teams, without those that ended more than 31 days ago.
    """
    mine = Reservation.objects.filter(
        project__team__in=policy.my_team_ids(user), end__gt=now - timedelta(days=31)
    )
    return list(mine.select_related("project__team", "pool", "owner").order_by("start", "pk")[:1000])


def filterable_teams(user: User) -> list[Team]:
    """Return the choices of the calendar's team filter. Every signed-in person may see the names of teams."""
    return list(Team.objects.order_by("name")) if user.is_authenticated else []
