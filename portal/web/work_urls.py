"""Pages of people who ask for GPUs."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
