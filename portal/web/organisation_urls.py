"""Pages about teams, people, one's own things, records and settings."""

from django.urls import path

from portal.web.fleet import pool_settings
from portal.web.people import audit, own_account, teams

urlpatterns = [
    path("teams/", teams.teams, name="teams"),
    path("teams/<slug:slug>/", teams.team, name="team"),
    path("people/", teams.people, name="people"),
    path("first-run/", teams.first_run_wizard, name="first-run"),
    path("tokens/", own_account.tokens, name="tokens"),
    path("notifications/", own_account.notifications, name="notifications"),
    path("preferences/", own_account.preferences, name="preferences"),
    path("audit/", audit.audit, name="audit"),
    path("settings/", pool_settings.organisation_settings, name="settings"),
    path("settings/pools/new/", pool_settings.pool_new, name="pool-new"),
    path("settings/pools/<slug:slug>/", pool_settings.pool_settings, name="pool"),
    path("settings/health/", pool_settings.health_rules, name="health-rules"),
    path("settings/recordings/", audit.recordings, name="recordings"),
    path("settings/recordings/<int:pk>/", audit.recording, name="recording"),
    path("templates/", pool_settings.workload_templates, name="templates"),
    path("templates/new/", pool_settings.edit_workload_template, name="template-new"),
    path("templates/<slug:slug>/", pool_settings.edit_workload_template, name="template"),
]
