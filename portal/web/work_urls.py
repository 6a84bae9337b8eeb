"""Pages of people who ask for GPUs."""

from django.urls import path

from portal.web import styleguide
from portal.web.calendar import reservations
from portal.web.calendar import views as calendar
from portal.web.fleet import volumes
from portal.web.gpu_request import views as ask
from portal.web.home import search, views
from portal.web.page.access import sign_in_required
from portal.web.work import explanation, jobs, notebooks, queue, workload_actions

urlpatterns = [
    path("", views.home, name="home"),
    path("ask/", ask.request_gpus, name="ask"),
    path("ask/preview/", ask.preview, name="ask-preview"),
    path("calendar/", calendar.calendar, name="calendar"),
    path("calendar/feed/<str:token>.ics", calendar.ical_feed, name="calendar-ical"),
    path("notebooks/", notebooks.notebooks, name="notebooks"),
    path("notebooks/launch/", notebooks.launch_notebook, name="notebook-launch"),
    path("notebooks/<uuid:public_id>/", notebooks.notebook, name="notebook"),
    path("notebooks/<uuid:public_id>/open/", notebooks.open_notebook, name="notebook-open"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/submit/", ask.submit_job, name="job-submit"),
    path("arrays/<uuid:public_id>/", jobs.array, name="array"),
    path("arrays/<uuid:public_id>/cancel/", jobs.cancel_array, name="array-cancel"),
    path("jobs/<uuid:public_id>/", jobs.job, name="job"),
    path("jobs/<uuid:public_id>/log/", jobs.log, name="job-log"),
    path("volumes/", volumes.volumes, name="volumes"),
    path("workloads/<uuid:public_id>/cancel/", workload_actions.cancel_workload, name="workload-cancel"),
    path("workloads/<uuid:public_id>/extend/", workload_actions.extend_workload, name="workload-extend"),
    path("workloads/<uuid:public_id>/keep/", workload_actions.keep_notebook, name="workload-keep"),
    path(
        "workloads/<uuid:public_id>/relaunch/", workload_actions.relaunch_workload, name="workload-relaunch"
    ),
    path("workloads/<uuid:public_id>/why/", explanation.explain_workload, name="why"),
    path("workloads/<uuid:public_id>/why/<uuid:other>/", queue.compare_turns, name="why-them"),
    path("workloads/<uuid:public_id>/sooner/", queue.faster_alternatives, name="sooner"),
    path("reservations/<uuid:public_id>/", reservations.reservation, name="reservation"),
    path("reservations/<uuid:public_id>/cancel/", reservations.cancel_reservation, name="reservation-cancel"),
    path("series/<uuid:public_id>/cancel/", reservations.cancel_series, name="series-cancel"),
    path("queue/", queue.queue, name="queue"),
    path("queue/fairness/<slug:slug>/", queue.fair_share_page, name="fairness"),
    path("search/", search.search, name="search"),
    path("styleguide/", sign_in_required(styleguide.styleguide), name="styleguide"),
]
