"""``python -m retinue``: the command line."""

from retinue.cli.program import main

if __name__ == "__main__":
    main()
