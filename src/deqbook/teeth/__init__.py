"""How sharp are the checks? Plant a bug, run a claim, see whether it notices.

``mutants`` makes the slips of a tired mathematician out of a function's source, ``planting`` puts
one into the running package, ``bench`` judges claims in processes of their own, ``survey`` draws a
sample for each claim and counts. The command is ``deqbook teeth``.

Mutation testers that are well kept (cosmic-ray, mutmut) rewrite files and start a test run for each
change. Loading torch and the claims takes seconds, a claim mostly less than one; and their
operators know no transpose, no dropped term, no n for m. Here a process that has everything loaded
forks for each mutant and exchanges the code of one function.
"""
