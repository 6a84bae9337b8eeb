"""Traffic of workspaces: access, proxy, activity, error pages."""
