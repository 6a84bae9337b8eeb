"""What is wrong with a given value, and what is allowed; who may do something."""
