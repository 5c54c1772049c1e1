"""A long random run that checks every result and watches memory. `ci/soak` starts it."""
