"""A group of ours: its plan and options, what is said of it, and its monitored barrier."""
