"""Cause and cure of single messages, by how their text begins, where those of their group on docs/troubleshooting.md say too little.

`tests/test_site.py` checks that each begins a message of the code. `WHOLE`: files of whose messages each has a cure here or in itself.
"""

from __future__ import annotations

WHOLE = (
    *("intarsia/compile.py", "intarsia/control.py", "intarsia/config.py", "intarsia/backends.py", "intarsia/graph_compiler.py"),
    *("intarsia/explaining/explanation.py", "intarsia/explaining/topics.py", "intarsia/second_order.py", "intarsia/training.py"),
    *("frontend/graph/dynamic.py", "frontend/runtime/fallback.py", "frontend/torch_private/foreign/", "targets/build/"),
    *("targets/triton/device.py", "targets/triton/worker.py", "targets/run/", "targets/recordings/"),
    "frontend/torch_private/dynamo.py",
)  # fmt: skip
CURES = {
    # arguments
    "unknown mode": "`mode` is a name of torch.compile's that there is not; take one of those that are listed, or leave it out",
    "passes are those of this compiler": "another backend has no place for them; leave out `backend` or `passes`",
    "guard_filter_fn takes": "give a function from a list of guards to a list of truth values",
    "intarsia.compile_in_place takes": "only a module can be compiled where it is; of a function, use what `intarsia.compile` returns",
    "intarsia.… takes a function or an nn.Module": "pass the function itself, not its result; a decorator with options is written `@intarsia.compile(fullgraph=True)`",
    "… is a class": "compile its methods, or a function that makes the object",
    "dynamic takes": "a size is marked with `mark_dynamic`; `dynamic` is for all of them",
    "fullgraph takes": "it says whether a graph break is an error, and nothing else",
    "options takes": 'write `options={"threads": 4}`; [Settings](settings.md) has the names',
    "… is …: a call of it runs none": "a generator or coroutine runs when it is consumed; compile what consumes it",
    "intarsia.… takes a function or a module": "pass the function or module that the mark is for",
    "intarsia.substitute_in_graph takes": "its first argument is the function that is replaced",
    "… stands for …": "both are called in the same way, so both need the same parameters",
    "intarsia.substitute_in_graph decorates": "what stands in the graph is captured, so it has to be Python; wrap the call in a function",
    "unknown stance": "take one of those that are listed",
    "intarsia.explain takes": "call `explain(fn)` first, and what it gives with the arguments: `explain(fn)(x)`",
    "the environment variable …: …": "the value is not one that the setting takes, and the default holds; correct it, or unset it",
    "the backward of … gives … gradients": "`torch.library.register_autograd` takes a function that returns one gradient for each argument, None where there is none",
    # settings
    "… takes one of": "the setting has a fixed list of values; take one of them",
    "… takes true or false": "write 1, true, yes, on or 0, false, no, off",
    "… takes …, not …": "give the value in the type that is named",
    "the environment variable … is not used": "its name is like that of a setting and is none; correct it, or unset it",
    "… takes a number from 0 to 1": "it is a share, of 1",
    "unknown option '…'": "the nearest name is suggested; [Settings](settings.md) has all",
    # sizes
    "a tensor is marked": "mark the tensor that is passed, before the call, not a number or a list of tensors",
    "mark_dynamic: min=": "exchange the two",
    "mark_dynamic: dimension": "this tensor is outside of the range that it promises; widen it, or mark another",
    # eager
    "…this graph runs in eager": "the reason stands behind it, with your line; see above",
    "backward with create_graph=True": "the second derivative is computed from the inputs; do not write to them between forward and backward",
    "this graph runs in eager where": "its backward has operations whose own derivative is not compiled; nothing has to be done",
    "graph break at": "[Graph breaks](graph-breaks.md) has each reason with its remedy",
    "intarsia: …": "the message of a part below, said once; its own line is on this page",
    "an object of the call is gone": "a weak reference of yours died between capture and this call; keep the object, or expect this call in eager",
    "a call of the library gives": "the operator gave another result than when it was captured (a subclass, shape or number); this call runs in eager. If it always does, keep it out with `intarsia.disable`",
    # the cache
    "this is nothing that save_cache_artifacts gave": "pass the bytes as they were returned, by a version that writes the same format",
    "another format": "the cache was written by another version; it is made again by itself",
    "… is in the way": "a file has the name of the cache folder; remove it, or set `INTARSIA_CACHE_DIR` to another place",
    "meta.json does not match": "the entry is damaged (a full disk, a process that was ended); it is left out and made again",
    "meta.json is that of another entry": "files of the cache were moved by hand; delete the folder",
    "a cache key is": "a name was given by hand; use what `save_cache_artifacts` gave",
    "… holds files that are not": "`INTARSIA_CACHE_DIR` names a folder with other files, which are not touched; give one of its own",
    "… is not in the entry's folder": "the entry names a file outside of itself and is not loaded; delete the folder if you did not do this",
    "… does not match its checksum": "the file is damaged; it is made again",
    "… is not there": "a file of the entry was removed; it is made again",
    "not a name for a file": "the artifact was changed after it was saved; save it anew",
    # the compiler
    "no C++ compiler found": "install one, or set `CXX`; until then graphs run in eager",
    "INTARSIA_PROCESSOR": "take one of those that are listed, or unset it: the processor is then found out",
    "CXX is no command": "it has to be a program on PATH with its flags, quoted as in a shell",
    "kernels run on one thread": "two OpenMP runtimes in one process would slow each other down; g++ uses torch's",
    # GPUs
    "… …: … (error …)": "a call of the CUDA driver failed; the code is CUDA's. Out of memory (2): less at once, or `options={\"cuda_graphs\": False}`",
    "it draws random numbers": "a recording would draw the same numbers in both threads; that call is not recorded",
    "a loop or branch cannot be recorded": "the driver is too old for loops in recordings (12.4); the program runs without one",
    "a result lies in the memory of an argument": "that program is not recorded, as a playback would overwrite what you hold",
    "the CUDA driver does not copy": "an address that a program holds is no longer one of the GPU's; look for tensors freed by another library",
    "the CUDA driver does not launch": "the kernel asks for more than the GPU has; report it with the folder of `INTARSIA_DEBUG`",
    "what the kernel … reads is not at a multiple": "an argument is a view at an odd place; it is copied in the next call, or pass a tensor of its own",
    "kernels for a GPU need Triton": "install it as the message says; until then graphs on a GPU run in eager",
    "the process that compiles it": "Triton's compiler ended (out of memory, a signal); the graph runs in eager. Try again, and report it if it stays",
    "it took longer than": "Triton's compiler was stuck on one kernel; the graph runs in eager",
    "no process can be started": "the system refuses new processes; raise its limit (`ulimit -u`)",
    "no answer: …": "the compiler's process said something else than an answer; see its text",
    # backends
    "unknown backend": "take one of `list_backends()`, or pass the function itself",
    "register_backend takes": "give a function `(gm, example_inputs) -> callable`",
    "the name of a backend": "give its name as text",
    "a backend named": "another package has the name; register yours under another one",
    "backend takes": "give a name or a function",
    "the backend … has no settings": "these options are of Intarsia's own backend; leave them out",
    "the backend … returned": "return `gm.forward`, or a function with the same arguments",
    "what the backend … compiled gives": "return one item for each of the graph's results, in order",
    "the backend … cannot be loaded": "it is a backend of torch.compile's that needs another package, which is named",
    "the backend … needs a package": "install the package that is named",
    "the backend … raised": "the error is the backend's, shown behind; `backend=\"eager\"` tells whether capture is at fault",
    "unknown option … of the backend": "options of inductor are those of `torch.compile(options=)`",
}  # fmt: skip


def cure_of(file: str, text: str) -> str:
    """The cure of a message; "" where its group's is all that can be said."""
    return next((cure for begins, cure in CURES.items() if file.startswith(WHOLE) and text.startswith(begins)), "")
