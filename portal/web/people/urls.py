"""Define the URL patterns of teams, people, the user's account, the audit trail and the settings."""

from django.urls import path

from portal.web.people import (
    audit,
    first_run,
    notifications,
    organisation_settings,
    people,
    person,
    preferences,
    removal,
    service_accounts,
    teams,
    tokens,
    workload_templates,
)
from portal.web.people.identity import directory_sync, own_identities, providers, rules

urlpatterns = [
    path("teams/", teams.teams, name="teams"),
    path("teams/<slug:slug>/", teams.team, name="team"),
    path("teams/<slug:slug>/remove/", removal.team_remove, name="team-remove"),
    path("people/", people.people, name="people"),
    path("people/<str:username>/", person.person, name="person"),
    path("people/<str:username>/<slug:verb>/", person.person_change, name="person-change"),
    path("first-run/", first_run.first_run_wizard, name="first-run"),
    path("tokens/", tokens.tokens, name="tokens"),
    path("service-accounts/", service_accounts.service_accounts, name="service-accounts"),
    path("notifications/", notifications.notifications, name="notifications"),
    path("preferences/", preferences.preferences, name="preferences"),
    path("audit/", audit.audit, name="audit"),
    path("ways-to-sign-in/", own_identities.own_identities, name="own-identities"),
    path("settings/sign-in/", providers.sign_in_settings, name="sign-in-settings"),
    path("settings/sign-in/new/", providers.new_provider, name="identity-provider-new"),
    path("settings/sign-in/new-directory/", providers.new_directory, name="directory-new"),
    path("settings/sign-in/rules/", rules.claim_rules, name="claim-rules"),
    path("settings/sign-in/rules/<int:pk>/remove/", rules.claim_rule_remove, name="claim-rule-remove"),
    path("settings/sign-in/providers/<slug:slug>/", providers.identity_provider, name="identity-provider"),
    path(
        "settings/sign-in/providers/<slug:slug>/sync/", directory_sync.directory_sync, name="directory-sync"
    ),
    path("settings/sign-in/providers/<slug:slug>/claims/", providers.test_claims, name="identity-claims"),
    path("settings/", organisation_settings.organisation_settings, name="settings"),
    path("templates/", workload_templates.workload_templates, name="templates"),
    path("templates/new/", workload_templates.edit_workload_template, name="template-new"),
    path("templates/<slug:slug>/", workload_templates.edit_workload_template, name="template"),
    path("templates/<slug:slug>/remove/", removal.template_remove, name="template-remove"),
]
