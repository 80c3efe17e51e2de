"""One self-contained page about any number of runs, and the same curves as figures for a paper."""

from fedwidth.report.figures import write_figures
from fedwidth.report.page import write_report
from fedwidth.report.runs import Run, read_runs

__all__ = ["Run", "read_runs", "write_figures", "write_report"]
