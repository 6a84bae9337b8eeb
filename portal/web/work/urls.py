"""Define the URL patterns of notebooks, jobs, job arrays and the queue."""

from django.urls import path

from portal.web.work import (
    arrays,
    explanation,
    jobs,
    notebooks,
    queue,
    report_page,
    workload_actions,
    workload_log,
)

urlpatterns = [
    path("notebooks/", notebooks.notebooks, name="notebooks"),
    path("notebooks/launch/", notebooks.launch_notebook, name="notebook-launch"),
    path("notebooks/<uuid:public_id>/", notebooks.notebook, name="notebook"),
    path("notebooks/<uuid:public_id>/open/", notebooks.open_notebook, name="notebook-open"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/<uuid:public_id>/", jobs.job, name="job"),
    path("jobs/<uuid:public_id>/log/", workload_log.log, name="job-log"),
    path("arrays/<uuid:public_id>/", arrays.array, name="array"),
    path("arrays/<uuid:public_id>/cancel/", arrays.cancel_array, name="array-cancel"),
    path("workloads/<uuid:public_id>/cancel/", workload_actions.cancel_workload, name="workload-cancel"),
    path("workloads/<uuid:public_id>/extend/", workload_actions.extend_workload, name="workload-extend"),
    path("workloads/<uuid:public_id>/keep/", workload_actions.keep_workload, name="workload-keep"),
    path(
        "workloads/<uuid:public_id>/relaunch/", workload_actions.relaunch_workload, name="workload-relaunch"
    ),
    path("workloads/<uuid:public_id>/report/", report_page.report, name="workload-report"),
    path("workloads/<uuid:public_id>/report/csv/", report_page.report_csv, name="workload-report-csv"),
    path("workloads/<uuid:public_id>/why/", explanation.explain_workload, name="why"),
    path("workloads/<uuid:public_id>/why/<uuid:other>/", explanation.compare_turns, name="why-them"),
    path("workloads/<uuid:public_id>/sooner/", explanation.faster_alternatives, name="sooner"),
    path("queue/", queue.queue, name="queue"),
    path("queue/fairness/<slug:slug>/", explanation.fair_share_page, name="fairness"),
]
