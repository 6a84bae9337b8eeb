"""Run an installation from this checkout: its folders, services, agents and verbs."""
