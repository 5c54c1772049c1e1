"""Estimates of `torch-ucc plan` beside what is measured on simulated hosts: `ci/estimates`."""
