"""The contract that every algorithm keeps, as checks that run on a small federation and speak in sentences."""
