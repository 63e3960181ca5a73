"""``python -m retinue``: the command line."""

from retinue.cli import main

if __name__ == "__main__":
    main()
