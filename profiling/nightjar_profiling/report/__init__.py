"""The report of a capture: `contents` collects plain data, `pack` compresses it, `render` embeds it in the page."""

from nightjar_profiling.report.render import render_report

__all__ = ["render_report"]
