"""Answers about captures for programs that read them, such as agents: small, sourced, and never an instruction."""
