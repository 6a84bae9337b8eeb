#!/usr/bin/env python3
"""Run Django's management commands. `./run manage ...` sets the environment of the running site."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
