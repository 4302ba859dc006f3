"""The contract that every algorithm keeps: checks that run on small federations and report problems
in sentences.
"""
