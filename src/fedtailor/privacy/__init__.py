"""Privacy: what protects the uploads of clients."""
