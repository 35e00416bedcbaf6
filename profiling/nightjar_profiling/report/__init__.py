"""The report of a capture: `contents` gathers plain data, `pack` makes them small, `render` puts them into the page."""

from nightjar_profiling.report.render import render_report

__all__ = ["render_report"]
