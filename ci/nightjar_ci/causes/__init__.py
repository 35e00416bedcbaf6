"""The causes of failures and regressions: start, changes, owners and the next command, for pages and messages."""
