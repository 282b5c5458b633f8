"""The microscope: every load and store of a kernel, on a machine without a GPU, and what they tell."""
