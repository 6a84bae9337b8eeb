"""Define the metrics of the edge.

With ``--metrics-port`` the edge serves them at ``/metrics`` on the loopback address (docs/edge.md).
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

# Histogram buckets. They are narrow around 200 ms, the target duration of a sync.
MILLISECONDS = (
    1,
    2,
    4,
    7,
    10,
    15,
    20,
    30,
    40,
    60,
    80,
    100,
    120,
    150,
    180,
    200,
    250,
    300,
    400,
    500,
    750,
    1e3,
    2e3,
    5e3,
    1e4,
)
SYNC_BUCKETS = tuple(bound / 1000 for bound in MILLISECONDS)

AGENTS = Gauge("gpupool_edge_agents", "Agents connected now")
REFUSED = Counter("gpupool_edge_agents_refused", "Agents' connections ended with a reason")
THROTTLED = Counter("gpupool_edge_frames_throttled", "Frames that waited because they came too fast")
FRAMES = Counter("gpupool_edge_frames", "Frames from agents", ["kind"])
SYNC_SECONDS = Histogram("gpupool_edge_sync_seconds", "Server time of one sync", buckets=SYNC_BUCKETS)
RENEWED_FROM_MEMORY = Counter(
    "gpupool_edge_leases_renewed_from_memory", "Reports answered from memory, without the database"
)
DATABASE_AWAY = Gauge("gpupool_edge_database_away", "1 while the database does not answer this edge")
CONNECTIONS = Gauge("gpupool_edge_connections", "Connections open now")
CONNECTIONS_REFUSED = Counter(
    "gpupool_edge_connections_refused", "Connections closed at once because too many are open", ["limit"]
)
REQUESTS = Counter("gpupool_edge_workspace_requests", "Requests to workspaces", ["outcome"])
SOCKETS = Gauge("gpupool_edge_workspace_sockets", "WebSockets of workspaces open now")
LOGS_NOT_KEPT = Counter("gpupool_edge_logs_not_kept", "Pieces of logs that could not be written to disk")
CUT = Counter(
    "gpupool_edge_workspace_sockets_cut", "WebSockets closed because the session or the workload ended"
)
LISTENERS = Gauge("gpupool_edge_event_listeners", "Pages that listen to live events now")
