"""Audit of what a run reveals to its parties: counts, attacks and checks, compared with what the job declares.

The way of the data, from `command` on: the job is played (`replay`), and the `messages` of its `transcript` are decoded
by `reader`. Then come the papers' security `conditions`; the attacks (`gradient_attacks`, `linear_attacks`,
`membership_attack`; their arithmetic is in `attacks/`); and what masks leave to be seen, by
`exact_checks`. Last come the `findings` and the `report`.
"""
