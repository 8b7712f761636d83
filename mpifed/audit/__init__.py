"""Audit of what a run reveals to its parties: counts, attacks and checks, compared with what the job declares.

The way of the data, from `command` on: the job is played (`replay`) and put down (`recording`), and a reader of
`received` messages decodes them; what is in them is said by `reveals`. Then come the papers' security `conditions`; the
attacks (`gradients`, with their arithmetic in `attacks/`; `equations`; `membership`); and what masks leave to be seen,
by `exact_checks`. Last come the `findings` and the `report`.
"""
