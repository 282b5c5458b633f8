"""What runs next to the learner's code: the only part of the checks inside a sandbox.

Modules here serve every lab; a folder or module named after a topic holds the calls of that lab.
"""
