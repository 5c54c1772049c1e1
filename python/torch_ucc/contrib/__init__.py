"""Adapters to programs that make their process groups by a class of their own.

Nothing here is imported by torch_ucc: each module needs the program that it is named after.
"""
