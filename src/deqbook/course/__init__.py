"""The course: every student's own numbers, and checks that say what is wrong, never the answer.

What a student needs is here and light: numpy, nothing else. What an instructor needs to grade is
in `deqbook.course.grading`, and asks for the extra ``course``.
"""
