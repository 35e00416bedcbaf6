"""Breaks between releases that happened to users, and releases that broke nothing, each as two nights."""
