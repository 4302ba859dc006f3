"""The report page: one HTML file from the records of runs, which needs no network. No torch."""
