"""A training with recovery, around which faults are drawn at random. `ci/chaos` starts it."""
