"""Pages of people who ask for GPUs."""

from django.urls import path

from portal.web import (
    ask,
    calendar,
    calendar_reservations,
    home,
    jobs,
    notebooks,
    queue,
    search,
    styleguide,
    volumes,
    why,
    work_actions,
)
from portal.web.access import signed_in

urlpatterns = [
    path("", home.home, name="home"),
    path("ask/", ask.ask, name="ask"),
    path("ask/preview/", ask.preview, name="ask-preview"),
    path("calendar/", calendar.calendar, name="calendar"),
    path("calendar/feed/<str:token>.ics", calendar.feed, name="calendar-ical"),
    path("notebooks/", notebooks.notebooks, name="notebooks"),
    path("notebooks/launch/", notebooks.launch, name="notebook-launch"),
    path("notebooks/<uuid:public_id>/", notebooks.notebook, name="notebook"),
    path("notebooks/<uuid:public_id>/open/", notebooks.open_notebook, name="notebook-open"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/submit/", ask.submit_job, name="job-submit"),
    path("arrays/<uuid:public_id>/", jobs.array, name="array"),
    path("arrays/<uuid:public_id>/cancel/", jobs.cancel_array, name="array-cancel"),
    path("jobs/<uuid:public_id>/", jobs.job, name="job"),
    path("jobs/<uuid:public_id>/log/", jobs.log, name="job-log"),
    path("volumes/", volumes.volumes, name="volumes"),
    path("workloads/<uuid:public_id>/cancel/", work_actions.cancel, name="workload-cancel"),
    path("workloads/<uuid:public_id>/extend/", work_actions.extend, name="workload-extend"),
    path("workloads/<uuid:public_id>/keep/", work_actions.keep, name="workload-keep"),
    path("workloads/<uuid:public_id>/relaunch/", work_actions.relaunch, name="workload-relaunch"),
    path("workloads/<uuid:public_id>/why/", why.why, name="why"),
    path("workloads/<uuid:public_id>/why/<uuid:other>/", queue.why_them, name="why-them"),
    path("workloads/<uuid:public_id>/sooner/", queue.sooner, name="sooner"),
    path("reservations/<uuid:public_id>/", calendar_reservations.reservation, name="reservation"),
    path("reservations/<uuid:public_id>/cancel/", calendar_reservations.cancel, name="reservation-cancel"),
    path("series/<uuid:public_id>/cancel/", calendar_reservations.cancel_series, name="series-cancel"),
    path("queue/", queue.queue, name="queue"),
    path("queue/fairness/<slug:slug>/", queue.fairness, name="fairness"),
    path("search/", search.search, name="search"),
    path("styleguide/", signed_in(styleguide.styleguide), name="styleguide"),
]
