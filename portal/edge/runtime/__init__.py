"""Provide the parts that the whole edge process uses.

They are database threads, the subscription to Redis, metrics, and the guard against slow request bodies.
"""
