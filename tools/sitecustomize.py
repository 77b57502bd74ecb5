"""Python imports a file of this name, if it finds one, when it starts. The book's programs find this one: it keeps Python from
searching all of PyTorch for garbage, again and again during the import and once at the end, which takes half of a short program's time.
"""

import atexit
import gc

gc.set_threshold(200_000, 20, 100)  # new objects between two searches; Python's own are 700, 10 and 10
atexit.register(gc.freeze)  # what is still there ends with the process
