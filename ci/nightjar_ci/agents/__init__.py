"""Answers about nights, facts and bisections for programs that read them, such as agents; they only read."""
