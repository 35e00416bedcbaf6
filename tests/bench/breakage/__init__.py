"""Faults planted in the installed libraries: do the conformance tests notice them?"""
