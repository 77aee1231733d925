"""The constants by which passes weigh one way against another, each with the measurement that gave it. What a machine has stands in `machine`.

"Zen 4" is a machine with two cores of it, "H200" the GPU of that name; measured in 2026. A constant without a measurement says so: it is
what its pass was written with, and the benchmarks were taken with it.
"""

from __future__ import annotations

# Sizes that nobody knows: they stand for these where orders and costs are compared.
HINT = 64  # not measured
GPU_HINT = 16 * 1024  # a small kernel loses less by blocks for a large one than a large one by small blocks

# What shares a kernel (fusion/). Bytes are those that could be moved in the same time.
LAUNCH = 16384  # starting one more kernel on a CPU; not measured
GPU_LAUNCH = 8 << 20  # the same on a GPU: 2 us of an H200
PER_OPERATION = 0.25  # one vectorised scalar instruction; not measured
MOST_LOADS = 32  # of what a GPU's kernel computes again at other places: windows of windows; not measured
MOST_AGAIN = 256  # operations that a GPU's kernel has once more: Triton took 10 s for a scan of 12 steps with 440
SERIAL_ELEMENTS = 16384  # below which a kernel need not be spread over threads; not measured
ADDRESS_COST = 64  # instructions from which on what is computed from positions is worth storing; not measured
LINE = 64  # bytes of a cache line
CONTRACT_TILE = 64  # rows or columns that share what a tile of a contraction computes of a factor; not measured
LARGEST_CONE = 16  # computations that are repeated for one value; not measured
SMALLER = 16  # a value this many times smaller may be stored to avoid storing a larger one; not measured
STAGED_BESIDE = 1024  # bytes of shared memory for what is not an operand of a product: what Triton took beside tiles

# Threads and tiles of a CPU (schedule/). An operation is a simple one on a vector's lane.
MIN_UNITS = 16  # fewer rows than this are not enough for the threads of a large machine; not measured
MIN_WORK = 1 << 16  # elements; below this a reduction is not worth spreading; not measured
SERIAL_OPERATIONS = 16 * 1024  # a kernel below this is not worth a second thread; not measured
WORTH_A_THREAD = 40_000  # operations: about 10 us on Zen 4, where a parallel region costs 2 to 5
SCALAR_FACTOR = 4  # an operation outside vector lanes counts for this many inside; not measured
ANGLES = 1024  # elements that a thread takes at a time where sin or cos look at their angles first; not measured
MOST_FOR_ANGLES = 32  # for computing angles once more; about what the cheaper sin and cos save; not measured
SHORTEST_SCAN = 32  # elements of a running reduction that is joined block by block; not measured
TILE_AGAIN, TILE_ONCE = (
    32,
    8,
)  # parts of the nearest cache that a tile of columns has, where rows are read again or not; not measured
CHUNK = 32 * 1024  # elements of a split reduction that one thread takes at a time; not measured
MAX_CHUNKS = 64  # not measured
JAM = 4  # steps of a column reduction taken at a time: gcc vectorises a body of so many; not measured
ASKED = 256  # elements of the next row that are asked for at a time; not measured
FAR = 2 << 20  # bytes; a smaller operand lies in a near cache anyway
AHEAD = (
    512,
    16 * 1024,
)  # bytes of a row, gathered by number, that are asked for while the row before is worked on; not measured
# The cost of a value, or the loads in it, from which on it is kept between two loops of a row; not measured.
WORTH_KEEPING = 8, 3
COSTLY = 4  # operations that are worth a place in scratch, where the loops would repeat them; not measured
MAX_PARTS = 8  # copies of a loop body at seams; not measured
# Times as many operations as the whole body has that more copies may have in all: 27 pieces of 2,048 x 64 side by side took 31 ms as one body that
# selects among them, on two cores of an EPYC.
AS_SHORT = 2
SHORT = 16  # iterations; a loop of fewer is not worth being the innermost one; not measured
MOMENTS_BYTES = 64 * 1024  # of a row; smaller ones are read again from a near cache at no cost
MOMENTS_BLOCK = 256, 16 * 1024  # elements of the innermost loop that are a block of a running mean; not measured
MOMENTS_FIRST = 1024  # bytes of the next block that are asked for early: the processor foresees the rest; not measured
LENT = 256 * 1024  # bytes of a value that may have memory of its own; not measured
WORTH_LENDING, LENT_PART = 4 << 20, 0.1  # bytes that this saves, and which part of all; not measured
STREAMED = 32 << 20  # bytes of a result that is written past the caches; not measured
STACK_BYTES = 64 * 1024  # scratch of a kernel up to this size in all lies on the stack: threads may have little of it
SHORTEST_STREAM = 128  # bytes that are written past them at a time, at least: two lines

# Blocks of a GPU's programs (schedule/).
PROGRAM_POINTS = 1024  # elements that one program takes of a kernel without reductions; not measured
PROGRAM_SQUARE = 64  # side of the tiles in which transposes are walked; not measured
# Elements of a longer row that a program takes at a time; half of them where there are rows enough, or nobody knows: cross_entropy of 8,192
# rows of 50,304 bfloat16 on an H200 reaches 101 % of the copy rate with 2,048 and 98 % with 4,096.
PROGRAM_PIECE = 4 * 1024
ENOUGH_ROWS = 4 * 1024  # such rows
# The same where a row is walked again, by 16 warps: fewer programs run at once then, and the L2 cache has their rows. group_norm of 32,768
# bfloat16 reaches 71 % of the H200's copy rate with 16,384 and 60 % with 4,096, where every row comes from memory twice.
PROGRAM_PIECE_AGAIN = 8 * 1024
LEAST_ROW = (
    256  # elements of a row from which on its numbers (statistics) are read once for a piece of it; not measured
)
LEAST_LONG = 8192  # elements of a row of which a program takes a piece of one row; not measured
LEAST_SIDE = 16  # rows shorter than this are no side of a tile; not measured
TAPS = 4  # loads of one memory from which on their addresses cost more than the data
# Of such a kernel: a pool of 3 x 3 takes 34 us with 512 elements a program (36 loads a thread), 42 with 1,024; a bilinear interpolation, which
# has 4, 61, 58, 53 and 60 us with 512, 1,024, 2,048 and 4,096 (H200).
LOADS_A_THREAD = 64
# Of a row that a program holds: 64 bytes a thread are on their way at once. layer_norm of 4,096 bf16 on an H200 reaches 91 % of the copy
# rate with 32 elements a thread, 87 % with 16; softmax of 2,048 bf16 96, 95, and 85 % with 8.
BYTES_A_THREAD, ELEMENTS_A_THREAD = 64, 16
# Of columns that a program holds: the mean and variance of 256 columns of 100,352 bfloat16 in tiles of 64 x 128 reach 2.2 TB/s of an H200 with
# four warps, 1.4 with eight, which exchange what they have.
COLUMNS_A_THREAD = 64
# Elements of a column that a program holds, beside 31 others. Longer ones are read again by another kernel, but in all of few elements: a batch
# norm of 6,272 rows of 1,024 takes 25 us so, and 44 where programs share columns and wait for each other (H200).
HELD_COLUMN, FEW_ELEMENTS = 512, 1 << 18
PROGRAM_LANES, PROGRAM_STEPS = 64, 32  # a tile of a reduction over columns; not measured
PROGRAM_WIDE_LANES = 256  # the same where rows end within a line of memory, which programs then share; not measured
LEAST_LANES = 16  # of columns that a program holds: two sectors of memory in float32
WARPS_OF_A_ROW = 8  # of a product of one row: more were slower (H200)
ENOUGH_PROGRAMS = 1024  # fewer than this leave a large GPU idle; not measured
PROGRAM_CHUNK = 8 * 1024  # elements of a split reduction that one program takes at least; not measured
BAG_STEP = 16  # elements at a time where numbers in memory say how many there are: mostly few
GROUP = 8  # blocks of rows that programs take with one block of columns, at least; not measured

# Rows that several of a GPU's programs share (schedule/cooperative).
SHARED_ROW_BYTES = 128 * 1024  # of a row; shorter ones are read again from the L2 cache while a program works on them
SHARED_LEAST = 1 << 20  # elements in all; fewer are not worth the waiting; not measured
ALONE = 16 * 1024  # elements; a row of no more is held by one program
# Elements that a program holds, and its warps: log_softmax of 131,072 float32 on an H200 reaches 89 % of the copy rate with 8,192; of rows
# that are not multiples of 16 bytes, where loads are single elements, 62 % with 4,096 and 39 % with 8,192.
HELD, HELD_WARPS, HELD_ODD = 8 * 1024, 8, 4 * 1024
READ_ONCE, READ_ONCE_WARPS = (
    2 * 1024,
    4,
)  # elements that it takes at a time where it reads them once: all 2,048 programs run at once then
SHARED_LANES = 64, 32  # neighbouring rows that are taken together; where they are held; not measured
SHARERS, LEAST_SHARERS = (
    64,
    8,
)  # programs of a row; a GPU that may hold fewer than these at once reads rows again instead
SHARED_PROGRAMS = 2048  # in all, where a row is read once

# Memory and what is known (memory/, layout/, analysis/).
ALIGNMENT = 64  # bytes that buffers begin at multiples of: a cache line, and the widest vector
FEWEST_MEMBERS = 4  # equal kernels of different sizes that become one launch; not measured
WAITING_BYTES = (
    64 << 20
)  # of values that live longer because their kernels wait for others to be launched with them; not measured
WAITING_PART = 16  # of the peak: what kernels free that stand late in the program; not measured
TOGETHER_PART = 64  # of the peak, by which casts for the caller side by side may raise it; not measured
EARLY = 4 << 20  # bytes of a GPU's memory that is taken before it is needed; not measured
MOST_GAPS = 2  # times as many elements in memory as in a value, where a library call wants them apart; not measured
LARGEST_KNOWN = 1 << 23  # elements of a value that is computed while compiling; not measured
MOST_KNOWN = 512  # operations of one; not measured
LARGEST_SUM = 4096  # elements that folding a reduction may add up; not measured

# Operators that are written out in primitives (graph/).
MOST_SLICES = 8  # of a pooling's window in one row, on a CPU; not measured
# Elements of a window that are written out on a GPU. Larger windows that overlap are computed one dimension after the other: 7 x 7 elements of
# each window in one kernel took 2,115 us where the library takes 334.
MOST_TAPS = 25
# Of a pooling with indices on a CPU, contiguous: one core takes 0.08 ms for 4x64x64x64 and windows of 2x2, 0.8 with 3x3 and steps of 1, the library
# 4.0 and 19. Its loops over channels-last images, 0.2 to 1.5 ms, are left alone.
MOST_TAPS_ON_CPU = 9
MOST_UNEVEN = 49  # of windows of different sizes; not measured
MOST_APART = 16  # of windows side by side, of which a loop reads more elements; not measured
LONGEST_SEARCHED = 1 << 20  # elements of a sorted sequence that kernels search: 21 steps; not measured
IMAGE_CHANNELS = 8  # fewer are padded by cuDNN: windows of 16 pixels, 3 channels, 32 images of 224x224 take 263 us, as a product some 20

# What is computed again in a training step's backward half (intarsia/partition). Bytes are those that could be moved in the same time.
FLOPS_A_BYTE = 8  # of products on a CPU: 100 GFLOP/s a thread beside 12 GB/s (Zen 5)
GPU_FLOPS_A_BYTE = 128  # the same on an H200: 600 TFLOP/s in half types beside 4.3 TB/s
GPU_PER_OPERATION = 0.06  # of a kernel's instructions for one element: 67 TFLOP/s
# A byte that is held until backward, beside one that is moved. Between 1.1 and 2 GELU and layer norm are computed again, batch norm is not.
# Zen 5, one thread: the step of a ViT takes 195 ms as with 0.25, and its peak is 0.77 of eager's instead of 0.96.
SAVED = 1.25
# On a GPU activations, norms and casts of weights to half types are computed again: the last move six bytes for two that are held.
GPU_SAVED = 2.05  # not measured

# Bytes of the results of a linear layer in front of a cross entropy (logits) from which on they are computed in chunks of rows, and of a chunk:
# on a CPU and on a GPU. Each chunk adds to the gradient of the weight: 12 bytes an element of it moved, for 6 operations a row. So a chunk has
# at least so many rows that this is some 7 % of its time: by the rates of FLOPS_A_BYTE and GPU_FLOPS_A_BYTE. On one thread of an EPYC 2,048 rows
# of 512 by 32,000 classes in float32 take 1.41 s at once, 1.25 in chunks of 256 rows, 1.32 in chunks of 512; under autocast 0.59 and 0.62.
LOGITS, LOGITS_CHUNK, LOGITS_ROWS = (128 << 20, 1 << 30), (64 << 20, 256 << 20), (256, 4096)
