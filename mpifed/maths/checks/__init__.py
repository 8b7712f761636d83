"""The contracts of objectives, terms and regularizers, tested at random points: for classes that users write."""
