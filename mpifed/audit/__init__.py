"""What a run shows to whom: transcripts are counted, attacked and tested, and compared with what the job declares."""
