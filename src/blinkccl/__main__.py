"""``python -m blinkccl``: the same as the command ``blink``."""

from blinkccl.cli import main

if __name__ == "__main__":
    main()
