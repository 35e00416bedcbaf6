"""Canaries: defects of JAX and its libraries that users met, one minimal program each, looked for every night."""
