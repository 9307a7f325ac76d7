"""`python -m dovetail` is the `dovetail` program."""

from dovetail.cli import main

if __name__ == "__main__":
    main()
