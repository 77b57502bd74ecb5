"""The workshop: files, formats, corpora and checkpoints; what makes the package one to trust, beside the line that teaches."""
