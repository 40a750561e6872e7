"""Moorage as its users have it: a server in a process of its own, real clients, real workers, real storage."""
