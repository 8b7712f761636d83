"""Running a job: from settings and data to a model, with checkpoints, resume and results."""
