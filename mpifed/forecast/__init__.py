"""What a job will send, show, take and cost, before it runs."""
