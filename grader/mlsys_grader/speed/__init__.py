"""Points for speed, measured where there is the device. Nothing in this room has run on a GPU yet."""
