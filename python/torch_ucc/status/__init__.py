"""What the ranks of a running job do: read from outside, without their help."""
