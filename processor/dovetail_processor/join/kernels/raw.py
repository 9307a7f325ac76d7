"""Plain memory for kernels: numbers at addresses.

Numba counts references of every array that is passed to a helper, with atomic operations: measured
on random keys, that took more than a quarter of the join's time. Kernels therefore pass addresses,
and load and store through these. Nothing is checked here: an address comes from an array that the
caller keeps alive, an index from the allocator.

`Memory` is what most kernels take first: the base addresses of a slab's and a state's arrays, and
a few constants, so that no kernel divides by them.
"""

from __future__ import annotations

from typing import Any

import numba as nb
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

# Fields of `Memory`.
WORDS = 0  # uint32: the arena
SLAB = 1  # int64: list heads and counters of the slab
BITS = 2  # uint64: free pages of each superpage
LINKS = 3  # int32 [superpage, 3]: class, previous, next
GROUPS = 4  # uint32 [group, 4]
PARTS = 5  # uint32 [group × inputs + input, 8]
INPUTS = 6  # and constants of the state: n
KEYED = 7  # 1 if slots hold the address of the key's bytes, else 0
SLOT_WORDS = 8  # 2 + KEYED + n
SMALL_SLOTS = 9  # slots of an index page of 1 KiB
LARGE_SLOTS = 10  # and of one of 4 KiB

Memory = nb.types.UniTuple(nb.int64, 11)


def _pointer(builder: Any, bits: int, base: Any, index: Any) -> Any:
    kind = ir.IntType(bits)
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index]), kind


def _loader(bits: int, signed: bool) -> Any:
    def typed(typing_context: Any, base: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer, _ = _pointer(builder, bits, args[0], args[1])
            value = builder.load(pointer)
            if bits == 64:
                return value
            widen = builder.sext if signed else builder.zext
            return widen(value, ir.IntType(64))

        return nb.int64(nb.int64, nb.int64), codegen

    return typed


def _storer(bits: int) -> Any:
    def typed(typing_context: Any, base: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer, kind = _pointer(builder, bits, args[0], args[1])
            cut = args[2] if bits == 64 else builder.trunc(args[2], kind)
            builder.store(cut, pointer)
            return context.get_dummy_value()

        return nb.void(nb.int64, nb.int64, nb.int64), codegen

    return typed


@intrinsic
def load(typing_context: Any, base: Any, index: Any) -> Any:
    """The index-th 4-byte word from `base` on, unsigned."""
    return _loader(32, signed=False)(typing_context, base, index)


@intrinsic
def load_int(typing_context: Any, base: Any, index: Any) -> Any:
    """The index-th 4-byte word from `base` on, signed."""
    return _loader(32, signed=True)(typing_context, base, index)


@intrinsic
def load_byte(typing_context: Any, base: Any, index: Any) -> Any:
    """The index-th byte from `base` on."""
    return _loader(8, signed=False)(typing_context, base, index)


@intrinsic
def load_long(typing_context: Any, base: Any, index: Any) -> Any:
    """The index-th 8-byte word from `base` on."""
    return _loader(64, signed=True)(typing_context, base, index)


@intrinsic
def store(typing_context: Any, base: Any, index: Any, value: Any) -> Any:
    """Set the index-th 4-byte word from `base` on."""
    return _storer(32)(typing_context, base, index, value)


@intrinsic
def store_long(typing_context: Any, base: Any, index: Any, value: Any) -> Any:
    """Set the index-th 8-byte word from `base` on."""
    return _storer(64)(typing_context, base, index, value)


@intrinsic
def prefetch(typing_context: Any, base: Any, index: Any) -> Any:
    """Ask for the cache line of the index-th 4-byte word without waiting for it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, word = _pointer(builder, 32, args[0], args[1])
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return nb.void(nb.int64, nb.int64), codegen


@intrinsic
def copy(typing_context: Any, to: Any, source: Any, size: Any) -> Any:
    """Copy `size` bytes from address `source` to address `to`; they do not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target = builder.inttoptr(args[0], byte)
        origin = builder.inttoptr(args[1], byte)
        cgutils.raw_memcpy(builder, target, origin, args[2], 1)
        return context.get_dummy_value()

    return nb.void(nb.int64, nb.int64, nb.int64), codegen
