"""Attacks on what parties of a federation see, as functions of arrays; each says what the attacker is given."""
