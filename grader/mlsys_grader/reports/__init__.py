"""Reports: student pages, plots and exports for instructors, the state of each submission."""
