"""How lab 10's checks call the learner's code: caches, steps of a model that ages, drafts, and what a step costs."""
