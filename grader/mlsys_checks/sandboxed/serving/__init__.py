"""How lab 11's checks call the learner's code: blocks and tables, schedulers under a load, a budget."""
