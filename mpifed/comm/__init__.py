"""Where clients live, how messages travel, and how answers are added."""
