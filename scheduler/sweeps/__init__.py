"""Do the periodic work that depends on time: time limits, reservation windows, silent hosts, retention.

Every function is level-triggered: it reads the rows and does the work that is due. The work is done once,
even if the function is called twice, late or in two processes.
"""
