"""`python -m stretto`: the command, where its folder is not on the PATH."""

from stretto.cli import main

if __name__ == "__main__":
    main()
