"""Attacks on messages and models of federated optimization, as functions of arrays; each states what is known."""
