"""Points for speed, measured where there is the device; nothing in this room has run on a GPU yet."""
