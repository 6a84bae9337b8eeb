"""Do the periodic work that the passing of time requires: time limits, windows, silent hosts, retention.

Every function works over rows and is level-triggered. It does its work once, even if it is called twice,
late or in two processes.
"""
