"""Audit of what a run reveals to its parties: counts, attacks and checks, compared with what the job declares.

The way of the data: `command` has a job played by `recording`, which decodes what was received; what is in it is said
by `reveals`. Then come `counts`, the papers' security condition; the attacks of `gradients`, whose
rows `inversion` and `networks` find, of `equations` and of `membership`; and `exact` checks of masks and ciphertexts.
Last come the `findings`, and the report.
"""
