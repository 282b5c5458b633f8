"""The trusted side: inputs, oracles and comparison. None of it is in a sandbox.

Modules here serve every lab; a folder named after a topic holds that lab's checks, and `LAB` in its `__init__`.
"""
