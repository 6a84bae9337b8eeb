"""Define the URL patterns of hosts, GPUs, volumes, pools, health rules and recordings."""

from django.urls import path

from portal.web.fleet import (
    alerts,
    capacity,
    dcgm_targets,
    gpu_geometry,
    health_rules,
    hosts,
    overview,
    pool_settings,
    recordings,
    removal,
    repairs,
    volumes,
)

urlpatterns = [
    path("fleet/", overview.fleet, name="fleet"),
    path("fleet/add/", hosts.host_add, name="host-add"),
    path("hosts/<str:name>/", hosts.host, name="host"),
    path("hosts/<str:name>/maintenance/", hosts.host_maintenance, name="host-maintenance"),
    path("hosts/<str:name>/dcgm/", dcgm_targets.host_dcgm, name="host-dcgm"),
    path("hosts/<str:name>/gpus/<int:index>/geometry/", gpu_geometry.gpu_geometry, name="gpu-geometry"),
    path("hosts/<str:name>/repair/", repairs.host_repair, name="host-repair"),
    path("hosts/<str:name>/remove/", removal.host_remove, name="host-remove"),
    path("hosts/<str:name>/move/", removal.host_move, name="host-move"),
    path("hosts/<str:name>/cordon/", hosts.host_change, {"verb": "cordon"}, name="host-cordon"),
    path("hosts/<str:name>/drain/", hosts.host_change, {"verb": "drain"}, name="host-drain"),
    path("hosts/<str:name>/return/", hosts.host_change, {"verb": "return"}, name="host-return"),
    path("hosts/<str:name>/off/", hosts.host_change, {"verb": "off"}, name="host-off"),
    path("hosts/<str:name>/revoke/", hosts.host_change, {"verb": "revoke"}, name="host-revoke"),
    path("alerts/", alerts.alerts, name="alerts"),
    path("alerts/<uuid:public_id>/", alerts.alert_change, name="alert-change"),
    path("capacity/", capacity.capacity, name="capacity"),
    path("capacity/<uuid:public_id>/", capacity.capacity_study, name="capacity-study"),
    path("capacity/<uuid:public_id>/sizes.csv", capacity.capacity_study_csv, name="capacity-study-csv"),
    path("volumes/", volumes.volumes, name="volumes"),
    path("settings/pools/new/", pool_settings.pool_new, name="pool-new"),
    path("settings/pools/<slug:slug>/", pool_settings.pool_settings, name="pool"),
    path("settings/pools/<slug:slug>/alerts/", alerts.pool_alerts, name="pool-alerts"),
    path("settings/pools/<slug:slug>/remove/", removal.pool_remove, name="pool-remove"),
    path("settings/health/", health_rules.health_rules, name="health-rules"),
    path("settings/recordings/", recordings.recordings, name="recordings"),
    path("settings/recordings/<int:pk>/", recordings.recording, name="recording"),
]
