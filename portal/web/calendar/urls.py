"""Define the URL patterns of the calendar, reservations and approvals."""

from django.urls import path

from portal.web.calendar import approvals, budget_requests, ical_feed, quota_requests, reservations, views

urlpatterns = [
    path("calendar/", views.calendar, name="calendar"),
    path("calendar/feed/<str:token>.ics", ical_feed.ical_feed, name="calendar-ical"),
    path("reservations/<uuid:public_id>/", reservations.reservation, name="reservation"),
    path("reservations/<uuid:public_id>/event.ics", ical_feed.reservation_file, name="reservation-ical"),
    path("reservations/<uuid:public_id>/cancel/", reservations.cancel_reservation, name="reservation-cancel"),
    path("series/<uuid:public_id>/cancel/", reservations.cancel_series, name="series-cancel"),
    path("approvals/", approvals.approvals, name="approvals"),
    path("approvals/decide/", approvals.decide_several, name="submissions-decide"),
    path("approvals/<uuid:public_id>/", approvals.submission, name="submission"),
    path(
        "approvals/<uuid:public_id>/approve/",
        approvals.decide,
        {"verb": "approve"},
        name="submission-approve",
    ),
    path(
        "approvals/<uuid:public_id>/decline/",
        approvals.decide,
        {"verb": "decline"},
        name="submission-decline",
    ),
    path(
        "approvals/<uuid:public_id>/withdraw/",
        approvals.decide,
        {"verb": "withdraw"},
        name="submission-withdraw",
    ),
    path("teams/<slug:slug>/quota/", quota_requests.request_quota, name="quota-change"),
    path("teams/<slug:slug>/budget/", budget_requests.request_budget, name="budget-request"),
]
