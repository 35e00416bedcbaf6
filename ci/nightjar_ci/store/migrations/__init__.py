"""How does an older store become a newer one? One file per step in `versions/`."""
