"""Small programs in the style of other projects, which the bench rewrites and breaks. Each has `step` and `make`."""
