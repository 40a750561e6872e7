"""Saved state: records, the protocol that saves them, their expiry and deletion."""
