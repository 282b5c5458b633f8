"""Performance points, measured where the device is present. Nothing in this package has run on a GPU yet."""
