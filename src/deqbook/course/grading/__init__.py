"""Grading: submissions run in a sandbox, and are judged from outside by the values they give.

The student's kernel runs in bubblewrap, without network, and sees the system read-only. The judge
runs outside. It sends inputs to a student's function, receives values, and computes the verdict
itself. No test, no solution and no other student's file is ever inside. So nothing that a notebook
overwrites, patches or reads can change a mark; only its values count.
"""
