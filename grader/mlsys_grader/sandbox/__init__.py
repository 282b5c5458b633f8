"""The sandbox around submissions, one jailed process each. Of the grader only the folder `inside` lies in it."""
