"""The contract that every algorithm keeps: checks on small federations, in sentences."""
