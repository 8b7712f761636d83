"""What a private run spends, writes to its ledger, protects and discloses."""
