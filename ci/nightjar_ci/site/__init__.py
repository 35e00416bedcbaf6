"""The status of the nights as a folder of static pages, badges and feeds."""
