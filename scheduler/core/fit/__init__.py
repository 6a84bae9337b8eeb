"""Find units for an ask, which is the hardware that a workload requests.

The modules find the available units, check the limits of quota and hardware, and choose the best hosts.
"""
