"""Bytes that are kept: sealed, counted against a quota, and put where they outlive a crash. Tenants are numbers."""
