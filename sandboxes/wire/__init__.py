"""The Monty wire protocol (version 6): kinds, the scan at the door, the rewrites. Pure functions on bytes."""
