"""Export a month in the layout of FOCUS, the FinOps Open Cost and Usage Specification (docs/focus.md).

``columns`` names the columns, ``queries`` selects their values, ``files`` writes the files, and ``check``
compares files with the specification.
"""
