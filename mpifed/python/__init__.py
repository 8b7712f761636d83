"""What `import mpifed` gives: data, methods and models as objects, which become the tables of a job."""
