"""tintlab: measures what `tintformer` computes, and shows it.

`__init__.pyi` lists the public names. They load on first use, as those of tintformer do.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
