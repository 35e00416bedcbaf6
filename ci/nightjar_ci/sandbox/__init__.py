"""The sandbox of foreign code on this machine: jobs, builds of packages, captures of a bisection."""
