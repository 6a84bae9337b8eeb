"""Close a month: store the first person's proposal, and make the statements of cost centres."""
