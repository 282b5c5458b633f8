"""How lab 12's checks call the learner's code: denoisers and networks from arrays in, images and numbers out."""
