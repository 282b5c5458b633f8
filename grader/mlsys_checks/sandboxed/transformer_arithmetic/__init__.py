"""How lab 05's checks call the learner's code: all of them that goes into the sandbox."""
