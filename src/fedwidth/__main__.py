"""`python -m fedwidth`: the command line, also where nothing is installed and only the source is on the path."""

from fedwidth.cli.entry import main

if __name__ == "__main__":
    main()
