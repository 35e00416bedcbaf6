"""The status site: a folder of static pages, badges and feeds."""
