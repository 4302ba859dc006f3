"""Experiments of papers: their tables, our records, and the comparison of both."""
