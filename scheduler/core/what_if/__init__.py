"""Answer hypothetical questions by running ``plan()`` on a changed snapshot.

Examples: Would this workload start now? Which similar request would start sooner? What would a drain of this
host stop? The package also has the simulation of a whole site.
"""
