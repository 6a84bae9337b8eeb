"""Define the URL patterns of the home page and the search."""

from django.urls import path

from portal.web.home import search, views

urlpatterns = [
    path("", views.home, name="home"),
    path("search/", search.search, name="search"),
]
