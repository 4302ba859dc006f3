"""Comparisons, figures and report pages, from the records of runs only. No torch."""
