"""Score nodes for the placement rule: expected waste, scarcity prices, the mix of demands.

Knows nodes and demands only, no pool state.
"""
