"""What decides about an answer: inputs, oracles and comparison. Nothing of this is in a sandbox.

Modules here serve every lab; a folder named after a topic holds the checks of that lab, and `LAB` in its `__init__`.
"""
