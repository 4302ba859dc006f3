"""The building blocks of a client's program: training, forward passes, losses."""
