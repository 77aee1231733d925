"""`passes-opt`: run passes on a file of IR, and look at, check, shrink, run or emit what comes out.

passes-opt -p fuse,schedule graph.ir
passes-opt --until plan-buffers --print-ir-diff graph.ir
passes-opt -p default --target triton:sm_90 --emit triton graph.ir
"""

from .main import main

__all__ = ["main"]
