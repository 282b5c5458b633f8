"""The instructor's side: release labs, collect submissions, judge them, enter marks, write feedback.

The packages, in the order that a submission passes them; each imports only from those before it (import-linter checks
that):

    course       the course folder, its labs, locks, atomic files
    intake       collect submissions from platforms, read each into a `Submission`, make them safe to display
    sandbox      an isolated process per submission; of the grader it sees only `sandbox/inside`
    judging      verdicts, formed outside the sandbox: `judge` runs cases, `oracle` is its client of the trusted process
                 (`trusted`), `problem` says what follows a failure; for several ranks, `world` runs them and `router`
                 carries their messages
    speed        performance points, where the device is present (this package has never run on a GPU)
    engines      where submissions are judged: this machine, or a Ray cluster
    gradebook    records of verdicts, nbgrader's database, backups, the audit log
    reports      pages for students, plots and tables for instructors, the state of each submission
    grading      a batch taken through all of them; regrading; judging in shards and merging

Off that path: `release` (solutions/ to labs/, and new labs), `proving` (do a lab's checks tell right from wrong?),
`commands` and `cli` (mlsys-grader).
"""
