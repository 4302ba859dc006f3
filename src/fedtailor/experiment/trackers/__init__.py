"""Trackers: they log runs for other programs that draw and compare them, such as TensorBoard.

A tracker is a module with one small class, a :class:`fedtailor.experiment.tracking.Tracker`. Its
library is an extra of the package, and is imported when a run begins that uses it.
"""
