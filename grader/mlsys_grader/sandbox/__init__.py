"""The sandbox: one isolated process per submission. Of the grader only the folder `inside` is visible there."""
