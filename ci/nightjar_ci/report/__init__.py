"""The report of a night: a page, JUnit XML, a markdown summary and a badge."""
