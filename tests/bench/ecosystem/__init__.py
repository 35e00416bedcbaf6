"""Breaks between releases that happened to users, and releases that broke nothing: does a night see them?"""
