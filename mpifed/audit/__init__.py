"""Audit of what a run reveals to its parties: counts, attacks and tests, compared with what the job declares.

The way of the data, from `command` on: the run is played again (`replay`), and its transcript checked against that
(`transcript_check`); its `messages` are decoded by `reader`. Then come the papers' security `conditions`; the attacks
(`gradient_attacks`, `linear_attacks`, `sent_rows`, `noise_attack`, `membership_attack`; their arithmetic is in
`attacks/`); and what masks and encryption leave to be seen (`uniformity`, `exact_checks`, `single_client`). Last come
the `findings` and the `report`.
"""
