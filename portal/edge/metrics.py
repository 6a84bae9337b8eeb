"""What the edge counts. Served on loopback at ``/metrics`` when ``--metrics-port`` is given; described in docs/edge.md."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

AGENTS = Gauge("gpupool_edge_agents", "Agents connected now")
REFUSED = Counter("gpupool_edge_agents_refused", "Agents' connections ended with a reason")
THROTTLED = Counter("gpupool_edge_frames_throttled", "Frames that waited because they came too fast")
FRAMES = Counter("gpupool_edge_frames", "Frames from agents", ["kind"])
SYNC_SECONDS = Histogram("gpupool_edge_sync_seconds", "Server time of one sync")
REQUESTS = Counter("gpupool_edge_workspace_requests", "Requests to workspaces", ["outcome"])
SOCKETS = Gauge("gpupool_edge_workspace_sockets", "WebSockets of workspaces open now")
CUT = Counter("gpupool_edge_workspace_sockets_cut", "WebSockets closed because the session or the workload ended")
LISTENERS = Gauge("gpupool_edge_event_listeners", "Pages that listen to live events now")
