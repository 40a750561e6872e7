"""Live interpreter sandboxes: the wire protocol, the workers and their pool, the sessions, and the doors to them."""
