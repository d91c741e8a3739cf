"""What a pass did to a model's predictions, as one page for the browser and as figures.

`collect` runs a text and gathers the numbers, `write` draws them into a directory; `coloured_html` is the text alone.
"""

from tintformer.report.collect import Report, collect
from tintformer.report.coloured import coloured_html
from tintformer.report.page import check_directory, write

__all__ = ["Report", "check_directory", "collect", "coloured_html", "write"]
