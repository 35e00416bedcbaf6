"""Migrations of an older store to the newest tables: one file per step in `versions/`."""
