"""Define the commands, one module per subject. These modules never import each other."""
