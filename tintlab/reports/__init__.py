"""What a pass did to a model's predictions, as one page for the browser and as figures.

`collect` runs a text and gathers the numbers, `write` draws them into a directory.
"""

from tintlab.reports.collect import Report, collect
from tintlab.reports.page import check_directory, write

__all__ = ["Report", "check_directory", "collect", "write"]
