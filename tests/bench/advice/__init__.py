"""Planted inefficiencies: does the advice name each, and is the predicted saving what the clock says?"""
