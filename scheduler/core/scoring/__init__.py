"""Score nodes for the placement rule: expected waste, scarcity prices, the mix of demands.

The package depends only on nodes and demands, not on the state of a pool.
"""
