"""Does what users build on JAX still work tonight? One file a cell, each run in a locked environment of its own."""
