"""Which rank hosts which clients, how messages travel between ranks, and how clients' answers are aggregated."""
