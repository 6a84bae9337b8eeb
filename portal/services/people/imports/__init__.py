"""Import people from a CSV file: ``rows.py`` checks the lines, ``person_import.py`` writes them."""
