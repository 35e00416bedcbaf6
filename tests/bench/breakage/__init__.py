"""Faults planted in the installed libraries: does a night see them, and does its report name the library?"""
