"""What objectives, terms and regularizers promise, tried on a few random points: for classes that users write."""
