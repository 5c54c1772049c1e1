"""Adapters for programs that create their process groups by a class of their own.

torch_ucc does not import these modules. Each module needs the program that it is named after.
"""
