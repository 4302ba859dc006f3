"""Known data sets."""
