"""The course folder and its labs: paths, locks, atomic files, notebooks."""
