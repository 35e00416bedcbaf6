"""Messages about a night to people: GitHub checks, comments and issues, and chat; nothing is sent unless asked for."""
