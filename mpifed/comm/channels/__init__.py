"""Who may read an upload: plain, masked and encrypted sums."""
