"""Recording and replay of small training steps."""
