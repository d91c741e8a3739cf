"""tintformer: a transformer whose forward pass contains the training of another one.

`__init__.pyi` lists the public names. They load on first use: the command line answers before torch is imported.
"""

import lazy_loader

from tintformer.threads import use_sleeping_threads
from tintformer.transformers.register import register_when_imported

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

use_sleeping_threads()
register_when_imported()
