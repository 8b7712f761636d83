"""`python -m mpifed`."""

from mpifed.cli import main

if __name__ == "__main__":
    main()
