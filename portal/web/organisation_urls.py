"""Pages about teams, people, one's own things, records and settings."""

from django.urls import path

from portal.web import own, people, records, settings_pages

urlpatterns = [
    path("teams/", people.teams, name="teams"),
    path("teams/<slug:slug>/", people.team, name="team"),
    path("people/", people.people, name="people"),
    path("first-run/", people.first_run, name="first-run"),
    path("tokens/", own.tokens, name="tokens"),
    path("notifications/", own.notifications, name="notifications"),
    path("preferences/", own.preferences, name="preferences"),
    path("audit/", records.audit, name="audit"),
    path("settings/", settings_pages.settings, name="settings"),
    path("settings/pools/new/", settings_pages.pool_new, name="pool-new"),
    path("settings/pools/<slug:slug>/", settings_pages.pool, name="pool"),
    path("settings/health/", settings_pages.health_rules, name="health-rules"),
    path("settings/recordings/", records.recordings, name="recordings"),
    path("settings/recordings/<int:pk>/", records.recording, name="recording"),
    path("templates/", settings_pages.templates, name="templates"),
    path("templates/new/", settings_pages.template_edit, name="template-new"),
    path("templates/<slug:slug>/", settings_pages.template_edit, name="template"),
]
