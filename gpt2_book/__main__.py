"""`python -m gpt2_book` is the command `gpt2-book`, also for a shell that does not find that."""

from gpt2_book.workshop.cli import main

if __name__ == "__main__":
    main()
