// The toy: the smallest index that keeps every promise, made of index/common/ and pool/ alone.
//
// It is the proof that these hold what an index needs beside its own protocol, and the example to
// begin with for whoever adds one. It is not fast: all writers wait for one lock, and each change
// copies a path of the tree.
//
// Format. A tree of sorted arrays that never change. Each array, a node, is an item
// (pool/memory/item.h) without a key; its value is
//   {level:1, number of slots:1, and for each slot: what it leads to:8, length of its key:2, key;
//    zeros up to node_bytes}.
// At level 0 slots lead to the items of keys and values; above, to the nodes of the next level,
// each with the first key that stands there. Integers are eight bytes, the most significant one
// first. Every node has at least kFewestSlots slots, but the root. The head of the tree is in the
// index's words of the catalogue: Head, in toy_index.cc.
//
// Reading. One READ of the root, then down. The operation's pin keeps all that could be reached
// from that root as it was, whatever is changed meanwhile; so a scan sees one moment.
//
// Changing. Under the lock a leaf and all nodes above it are copied with the change made; then one
// WRITE of the root makes them the tree. Whatever is cut short before it has changed nothing, so
// who takes the lock over has nothing to repair. A WRITE of the root that is late comes before the
// lock is free (rule 9 of fabric/verbs.h), because lock and root are at one memory node.
//
// Freeing. Who replaced nodes retires them once it knows that the root has been written. If it
// never learns, because it dies, is dropped in that round trip, or has no answer, either the old
// path or the new one is lost. A drop of the index writes down how far it has come before it frees
// a node, as whoever goes on with it must not free one twice.
#pragma once

#include "index/index.h"

namespace pando::testing {

// To be added to the registry. Thread-safe.
const index::Kind& toy_kind();

}  // namespace pando::testing
