"""Documents that the package reads and writes, and the types they are read into. Strict, versioned, no side effects."""
