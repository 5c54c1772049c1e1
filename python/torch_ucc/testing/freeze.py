"""Imported last by the server that ranks are forked from. The ranks share what the server has imported.

A rank does not collect these modules. At its end, it does not clear them and does not run their destructors:
this would copy most of their memory, and take 0.4 s for each rank. What the rank itself imports, such as the
backend, ends as in any program. A process calls its exit handlers in the reverse of their order, so that the
handlers of the rank come before the handlers of this module.
"""

import ctypes
import gc
import sys
import weakref

_libc = ctypes.CDLL(None)
_libc.on_exit(_libc._exit, None)  # gets the exit status
_libc.on_exit(_libc.fcloseall, None)  # is called before _exit, and writes what C code has printed

_shared = [dict(getattr(module, "__dict__", {})) for module in sys.modules.values()]
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_shared))
for _each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
    _each.atexit = False

gc.freeze()
