"""The functions that jobs execute: the recorder of a job's process, and recordings of a matrix."""
