"""Engines: how many clients run at the same time, and where.

This module imports nothing, so that listing is fast.
"""

ENGINES = {
    "auto": (
        "on a CPU: workers, or processes for a long run of a small model; the same bits; on "
        "another device: batched"
    ),
    "batched": "clients stacked into one vectorized program; on the CPU or another device",
    "processes": (
        "one process per physical core, one client at a time in each; for models whose steps take "
        "less than a millisecond, where threads slow each other down; the same bits as reference"
    ),
    "ray": (
        "actors of a Ray cluster, on one machine or on many, one client at a time in each; the "
        "same bits as reference; needs fedtailor[ray]"
    ),
    "reference": (
        "a plain loop over clients on one thread; on the CPU or another device; the other engines "
        "are tested against it"
    ),
    "workers": (
        "one thread per physical core, one client at a time in each; the same bits as reference"
    ),
}
