"""The course folder and the labs graded in it: paths, locks, files written whole, notebooks."""
