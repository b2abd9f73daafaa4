"""`python -m protea`: the program `protea`."""

from protea.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
