"""Provide test installations, pools of database rows, and clients for the benchmarks."""
