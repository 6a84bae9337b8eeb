"""Pages of people who run and pay for the pool."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
