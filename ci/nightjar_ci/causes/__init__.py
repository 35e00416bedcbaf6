"""The causes of failures and regressions: start, changes and the next command, for pages and messages."""
