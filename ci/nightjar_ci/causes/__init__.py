"""The causes of what is not ok: start, changes, owners and the next command, for pages and messages."""
