"""The status site: a folder of static pages, with badges."""
