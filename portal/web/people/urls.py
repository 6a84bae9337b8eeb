"""Define the URL patterns of teams, people, the user's account, the audit trail and the settings."""

from django.urls import path

from portal.web.people import (
    account,
    audit,
    first_run,
    notice_channels,
    notifications,
    organisation_settings,
    people,
    people_import,
    person,
    removal,
    service_accounts,
    teams,
    tokens,
    workload_templates,
)
from portal.web.people.identity import directory_sync, own_identities, providers, rules, unix_identity

urlpatterns = [
    path("teams/", teams.teams, name="teams"),
    path("teams/<slug:slug>/", teams.team, name="team"),
    path("teams/<slug:slug>/remove/", removal.team_remove, name="team-remove"),
    path("people/", people.people, name="people"),
    path("people/<str:username>/", person.person, name="person"),
    path("people/<str:username>/unix-identity/", unix_identity.unix_identity, name="unix-identity"),
    path("people/<str:username>/<slug:verb>/", person.person_change, name="person-change"),
    path("people-import/", people_import.people_import, name="people-import"),
    path("people-import/links/", people_import.first_passwords, name="people-import-links"),
    path("first-run/", first_run.first_run_wizard, name="first-run"),
    path("tokens/", tokens.tokens, name="tokens"),
    path("service-accounts/", service_accounts.service_accounts, name="service-accounts"),
    path("notifications/", notifications.notifications, name="notifications"),
    path("notifications/channels/", notice_channels.notice_channels, name="notice-channels"),
    path("notifications/channels/<uuid:public_id>/", notice_channels.notice_channel, name="notice-channel"),
    path("account/", account.account, name="account"),
    path("account/second-factor/", account.second_factor_page, name="second-factor-required"),
    path("preferences/", account.to_account, {"section": "profile"}, name="preferences"),
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
