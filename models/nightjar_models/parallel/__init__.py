"""What the compiler does not do by itself: ring attention, pipelines, matrix products that overlap, a broadcast."""
