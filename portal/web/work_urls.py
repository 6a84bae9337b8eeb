"""Pages of people who ask for GPUs."""

from django.urls import path

from portal.web import home, jobs, notebooks, work_actions

urlpatterns = [
    path("", home.home, name="home"),
    path("notebooks/", notebooks.notebooks, name="notebooks"),
    path("notebooks/launch/", notebooks.launch, name="notebook-launch"),
    path("notebooks/<uuid:public_id>/", notebooks.notebook, name="notebook"),
    path("notebooks/<uuid:public_id>/open/", notebooks.open_notebook, name="notebook-open"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/<uuid:public_id>/", jobs.job, name="job"),
    path("jobs/<uuid:public_id>/log/", jobs.log, name="job-log"),
    path("workloads/<uuid:public_id>/cancel/", work_actions.cancel, name="workload-cancel"),
    path("workloads/<uuid:public_id>/extend/", work_actions.extend, name="workload-extend"),
    path("workloads/<uuid:public_id>/keep/", work_actions.keep, name="workload-keep"),
    path("workloads/<uuid:public_id>/relaunch/", work_actions.relaunch, name="workload-relaunch"),
]
