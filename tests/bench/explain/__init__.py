"""Which line makes two answers differ: planted differences in five programs."""
