"""The experiments of four papers: their settings, our records, and the program that makes them.

It works in a clone of the repository: ``python -m experiments list``. docs/results/experiments.md
explains it.
"""
