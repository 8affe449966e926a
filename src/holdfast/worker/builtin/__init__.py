"""The tasks that Holdfast brings itself."""
