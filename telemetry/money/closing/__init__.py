"""Close a month: proposals of the first person, and the statements of cost centres."""
