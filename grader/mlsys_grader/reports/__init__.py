"""Reports: pages for students, plots and exports for instructors, where each submission stands."""
