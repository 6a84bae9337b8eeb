"""Score nodes (hosts) for the placement rule, which chooses the node on which a request is placed.

The score consists of the GPU capacity that would be wasted and of prices for scarce resources. The package
depends only on nodes and demands, not on the state of a pool.
"""
