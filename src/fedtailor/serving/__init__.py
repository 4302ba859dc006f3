"""Models in use: load a run, predict, export, and onboard a new site."""
