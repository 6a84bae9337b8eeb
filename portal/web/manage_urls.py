"""Pages of people who run and pay for the pool."""

from django.urls import path

from portal.web.calendar import approvals
from portal.web.fleet import gpu_geometry, hosts, overview, repairs
from portal.web.money import chargeback, utilisation

urlpatterns = [
    path("utilisation/", utilisation.utilisation, name="utilisation"),
    path("utilisation/<str:chart>.csv", utilisation.utilisation_csv, name="utilisation-csv"),
    path("chargeback/", chargeback.chargeback, name="chargeback"),
    path("chargeback/rates/", chargeback.rate_card, name="rate-card"),
    path("chargeback/budgets/", chargeback.budgets, name="budgets"),
    path("chargeback/<str:month>/close/", chargeback.month_close, name="month-close"),
    path("approvals/", approvals.approvals, name="approvals"),
    path("approvals/decide/", approvals.decide_several, name="submissions-decide"),
    path("approvals/<uuid:public_id>/", approvals.submission, name="submission"),
    path(
        "approvals/<uuid:public_id>/approve/",
        approvals.decide,
        {"verb": "approve"},
        name="submission-approve",
    ),
    path(
        "approvals/<uuid:public_id>/decline/",
        approvals.decide,
        {"verb": "decline"},
        name="submission-decline",
    ),
    path(
        "approvals/<uuid:public_id>/withdraw/",
        approvals.decide,
        {"verb": "withdraw"},
        name="submission-withdraw",
    ),
    path("teams/<slug:slug>/quota/", approvals.request_quota, name="quota-change"),
    path("fleet/", overview.fleet, name="fleet"),
    path("fleet/add/", hosts.host_add, name="host-add"),
    path("hosts/<str:name>/", hosts.host, name="host"),
    path("hosts/<str:name>/maintenance/", hosts.host_maintenance, name="host-maintenance"),
    path("hosts/<str:name>/gpus/<int:index>/geometry/", gpu_geometry.gpu_geometry, name="gpu-geometry"),
    path("hosts/<str:name>/repair/", repairs.host_repair, name="host-repair"),
    path("hosts/<str:name>/cordon/", hosts.host_change, {"verb": "cordon"}, name="host-cordon"),
    path("hosts/<str:name>/drain/", hosts.host_change, {"verb": "drain"}, name="host-drain"),
    path("hosts/<str:name>/return/", hosts.host_change, {"verb": "return"}, name="host-return"),
    path("hosts/<str:name>/off/", hosts.host_change, {"verb": "off"}, name="host-off"),
    path("hosts/<str:name>/revoke/", hosts.host_change, {"verb": "revoke"}, name="host-revoke"),
]
