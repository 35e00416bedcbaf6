"""What is not ok now, since when, what changed with it, who is asked, what to run: for the pages and messages."""
