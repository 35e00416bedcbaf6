"""Readers of Nsight Systems' reports and exports."""
