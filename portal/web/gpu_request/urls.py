"""Define the URL patterns of the form that requests GPUs."""

from django.urls import path

from portal.web.gpu_request import views

urlpatterns = [
    path("ask/", views.request_gpus, name="ask"),
    path("ask/preview/", views.preview, name="ask-preview"),
    path("jobs/submit/", views.submit_job, name="job-submit"),
]
