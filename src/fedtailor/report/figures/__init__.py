"""The figures of a report, each made of what the records hold; none where they do not. No torch."""
