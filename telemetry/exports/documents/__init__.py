"""Write the statement of a cost centre as PDF."""
