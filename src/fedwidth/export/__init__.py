"""Out of a run: its model at any width, ready to use, and files of it for other programs and devices."""

from fedwidth.export.run import export_run

__all__ = ["export_run"]
