"""Order the waiting work: admission, turns by quota tier and fair share, runtime prediction."""
