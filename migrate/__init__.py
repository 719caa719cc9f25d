"""reexport."""
