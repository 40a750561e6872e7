"""How quick Moorage is: its server against a relay that does nothing else, measured side by side.

`python -m bench` starts both, measures, and prints one JSON object.
"""
