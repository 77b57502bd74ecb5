"""GPT-2 from scratch in PyTorch: the package that the chapters of the book export.

The names below are loaded when they are first used, so that `import gpt2_book` costs next to nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt2_book.model import GPT, GPTConfig
    from gpt2_book.tokenizer import Tokenizer

__all__ = ["GPT", "GPTConfig", "Tokenizer", "__version__"]

_HOME = {"GPT": "model", "GPTConfig": "model", "Tokenizer": "tokenizer"}


def __getattr__(name: str) -> object:
    """Import a public name from its module, or read the version that was installed."""
    if name in _HOME:
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name == "__version__":
        from importlib.metadata import version

        value = version(__name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
