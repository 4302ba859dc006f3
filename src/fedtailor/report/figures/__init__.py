"""The figures of a report: numbers from records, drawn as SVG that follows the colors of its page.
No torch.
"""
