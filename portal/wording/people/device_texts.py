"""Name the browser and the system of a session from its User-Agent header."""

from __future__ import annotations

# The first text that the header contains decides. Edge and Opera also name Chrome, and Chrome names Safari.
BROWSERS = (
    ("Edg", "Edge"),
    ("OPR", "Opera"),
    ("Firefox", "Firefox"),
    ("Chrom", "Chromium"),
    ("Safari", "Safari"),
)
SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)


def device_name(agent: str) -> str:
    """Return the name of a browser and its system, such as ``Firefox, Linux``."""
    browser = next((name for part, name in BROWSERS if part in agent), "")
    system = next((name for part, name in SYSTEMS if part in agent), "")
    return ", ".join(filter(None, (browser, system))) or agent[:40] or "Unknown program"
