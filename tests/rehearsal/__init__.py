"""A workflow of .github, run on this machine: its steps in order, with local stand-ins for GitHub's own actions."""
