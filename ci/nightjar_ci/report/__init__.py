"""A night as a page, as JUnit XML, as a markdown summary and as a badge."""
