"""The report of a night: a page, JUnit XML and a markdown summary."""
