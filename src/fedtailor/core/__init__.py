"""Core types, on which everything else builds.

Algorithm, task, message, federation, keys, trees, scores, errors.
"""
