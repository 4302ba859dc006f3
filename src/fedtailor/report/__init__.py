"""Comparisons, figures and report pages, from the records of runs only. No torch."""

from fedtailor.report.comparison import compare as compare
from fedtailor.report.methods import read_methods as read_methods
