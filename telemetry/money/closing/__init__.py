"""Make the statements of cost centres at the close of a month."""
