"""`python -m hookscope` is the command `hookscope`."""

from ._cli import main

if __name__ == "__main__":
    raise SystemExit(main())
