"""Mistakes made by a machine: small changes of right solutions, each of which a lab's checks have to notice.

Whoever writes the checks also thinks up the mistakes of `variants.diff`, with the same blind spots. So the reference
and every alternative are changed in all places, in every way that an operator knows:

    code         which functions of a text are the learner's, and what its names are
    expressions  operators on one expression: constants, signs, comparisons, names, arguments …
    statements   operators on a statement or a whole function: dropped, done in place, remembered, cut short …
    cuda         operators on the text of a kernel in CUDA C++
    shown        values, rounds and calls of the cases that learners see, for solutions that know only those
    mutants      all of them for a lab, each with a name that outlives other edits of the text
    run          judge them in forked children
    tally        the kill rate, and the survivors

Operators follow those of mutmut and Cosmic Ray, and what strangers got wrong unnoticed.
"""
