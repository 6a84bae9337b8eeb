"""The commands, one module per subject. They never import each other."""
