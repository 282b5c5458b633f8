"""How lab 08's checks call the learner's code: each rank goes through its own steps, and its weights tell the rest."""
