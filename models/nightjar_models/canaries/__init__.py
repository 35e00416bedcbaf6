"""Canaries: defects of JAX and its libraries that users met, a program or a table entry each, looked for nightly."""
