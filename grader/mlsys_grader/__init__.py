"""The instructor's side: labs are released, hand-ins taken in, judged, entered and given back.

The rooms, in the order that a submission takes; a room imports only from those before it (import-linter holds that):

    course       the course folder, the labs graded in it, locks, files written whole
    intake       hand-ins collected from platforms, each read once into a `Submission`, made fit to be shown
    sandbox      a jailed process for each submission; of the grader only `sandbox/inside` lies in there
    judging      verdicts, formed outside the sandbox: `judge` asks, `oracle` knows (its process: `trusted`), `problem`
                 says what follows; of a program of several ranks, `world` holds all and `exchange` carries messages
    speed        points for speed, where there is the device (this room has never run on a GPU)
    engines      who judges: this machine, or a Ray cluster
    gradebook    records of verdicts, nbgrader's database, backups, the audit log
    reports      pages for students, plots and tables for instructors, where each submission stands
    grading      a batch led through all of them; judged again; judged in shards and merged

Beside the way: `release` (solutions/ into labs/, and new labs), `proving` (do a lab's checks tell right from wrong?),
`commands` and `cli` (mlsys-grader).
"""
