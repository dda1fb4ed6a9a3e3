"""`python -m kernelmesh` is the `kernelmesh` command."""

from kernelmesh.cli import main

if __name__ == "__main__":
    main()
