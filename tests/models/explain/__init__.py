"""Which line makes two answers differ."""
