"""What runs beside the learner's code: all of the checks that goes into a sandbox.

Modules here serve every lab; a folder or module named after a topic holds the calls of that lab.
"""
