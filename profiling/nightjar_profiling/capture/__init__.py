"""Running a program under a profiler, without touching its source."""
